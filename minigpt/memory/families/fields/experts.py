"""Mixtures of experts. Defaults are transformers 5.17's."""

from __future__ import annotations

from minigpt.memory.families.fields.shared import RMS_NORM, ROTARY, SIZES, Fields, activations, names

# The loss over the routers needs output_router_logits, and is not covered; its weight is then without effect.
ROUTER = {"output_router_logits": (False,)}
ACTIVATION = {"hidden_act": activations("silu")}
PLAIN = RMS_NORM | ROTARY | names("router_aux_loss_coef")
QWEN = {
    **SIZES, "vocab_size": 151936, "hidden_size": 2048, "num_hidden_layers": 24, "max_position_embeddings": 32768,
    "use_sliding_window": False, "sliding_window": 4096, "decoder_sparse_step": 1, "norm_topk_prob": False,
    "mlp_only_layers": None, "hidden_act": "silu", "attention_dropout": 0.0,
}  # fmt: skip

EXPERTS = {
    "mixtral": Fields(
        used={**SIZES, "intermediate_size": 14336, "num_key_value_heads": 8, "max_position_embeddings": 131072,
              "sliding_window": None, "num_experts_per_tok": 2, "num_local_experts": 8, "hidden_act": "silu",
              "attention_dropout": 0.0, "router_jitter_noise": 0.0},
        only={**ACTIVATION, **ROUTER},
        without_effect=PLAIN,
        aliases={"num_experts": "num_local_experts"},
    ),
    "qwen2_moe": Fields(
        used={**QWEN, "intermediate_size": 5632, "num_attention_heads": 16, "num_key_value_heads": 16,
              "max_window_layers": 28, "layer_types": None, "moe_intermediate_size": 1408,
              "shared_expert_intermediate_size": 5632, "num_experts_per_tok": 4, "num_experts": 60, "qkv_bias": True},
        only={**ACTIVATION, **ROUTER},
        without_effect=PLAIN,
    ),
    "qwen3_moe": Fields(
        used={**QWEN, "intermediate_size": 6144, "num_key_value_heads": 4, "attention_bias": False,
              "moe_intermediate_size": 768, "num_experts_per_tok": 8, "num_experts": 128},
        only={**ACTIVATION, **ROUTER},
        without_effect=PLAIN | names("max_window_layers"),
        aliases={"num_local_experts": "num_experts"},
    ),
    "deepseek_v3": Fields(
        used=dict(
            vocab_size=129280, hidden_size=7168, intermediate_size=18432, moe_intermediate_size=2048,
            num_hidden_layers=61, num_attention_heads=128, num_key_value_heads=128, n_shared_experts=1,
            n_routed_experts=256, kv_lora_rank=512, q_lora_rank=1536, qk_rope_head_dim=64, v_head_dim=128,
            qk_nope_head_dim=128, n_group=8, topk_group=4, num_experts_per_tok=8, first_k_dense_replace=3,
            norm_topk_prob=True, max_position_embeddings=4096, rope_interleave=True, attention_bias=False,
            tie_word_embeddings=False, hidden_act="silu", attention_dropout=0.0,
        ),
        only={**ACTIVATION, "moe_layer_freq": (1,), "scoring_func": ("sigmoid",), "topk_method": ("noaux_tc",)},
        # What predicts further tokens is not built for training; the two widths are made from the others.
        without_effect=PLAIN | names(
            """pretraining_tp routed_scaling_factor num_mtp_layers num_nextn_predict_layers head_dim qk_head_dim
            ep_size seq_aux aux_loss_alpha"""
        ),
        aliases={"num_local_experts": "n_routed_experts"},
    ),
    "gpt_oss": Fields(
        used={**SIZES, "vocab_size": 201088, "hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 36,
              "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "max_position_embeddings": 131072,
              "sliding_window": 128, "layer_types": None, "attention_bias": True, "num_local_experts": 128,
              "num_experts_per_tok": 4, "attention_dropout": 0.0},
        only=ROUTER,
        # Its experts have one activation, whatever hidden_act says.
        without_effect=PLAIN | names("hidden_act swiglu_limit experts_per_token initial_context_length"),
        aliases={"num_experts": "num_local_experts"},
    ),
}  # fmt: skip
