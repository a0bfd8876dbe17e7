"""llama and its near relatives: RMSNorm, rotary positions, a gated MLP. Defaults are transformers 5.17's."""

from __future__ import annotations

from minigpt.memory.families.fields.shared import (
    RMS_NORM,
    ROTARY,
    SIZES,
    Fields,
    activations,
    names,
)

PLAIN = RMS_NORM | ROTARY
WINDOW = dict(sliding_window=4096, use_sliding_window=False, max_window_layers=28, layer_types=None)  # of the Qwens
TAKEN = {**SIZES, "attention_dropout": 0.0}
ACTIVATION = {"hidden_act": activations("silu")}
GELU = activations("gelu_pytorch_tanh")
ONE_WAY = {"use_bidirectional_attention": (None, False)}
GEMMA = {**TAKEN, "vocab_size": 256000, "head_dim": 256, "max_position_embeddings": 8192, "tie_word_embeddings": True,
         "attention_bias": False}  # fmt: skip
GEMMA2 = {
    **GEMMA, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26, "num_attention_heads": 8,
    "num_key_value_heads": 4, "hidden_activation": "gelu_pytorch_tanh", "sliding_window": 4096, "layer_types": None,
    "final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0,
}  # fmt: skip

LLAMAS = {
    "llama": Fields(
        used={**TAKEN, "attention_bias": False, "mlp_bias": False, "hidden_act": "silu"},
        only=ACTIVATION,
        without_effect=PLAIN | names("pretraining_tp is_llama_config rope_interleaved"),
    ),
    "mistral": Fields(
        used={**TAKEN, "intermediate_size": 14336, "num_key_value_heads": 8, "max_position_embeddings": 131072,
              "sliding_window": 4096, "hidden_act": "silu"},
        only=ACTIVATION,
        without_effect=PLAIN,
    ),
    "qwen2": Fields(
        used={**TAKEN, **WINDOW, "vocab_size": 151936, "intermediate_size": 22016, "num_key_value_heads": 32,
              "max_position_embeddings": 32768, "hidden_act": "silu"},
        only=ACTIVATION,
        without_effect=PLAIN | names("use_mrope"),
    ),
    "qwen3": Fields(
        used={**TAKEN, **WINDOW, "vocab_size": 151936, "intermediate_size": 22016, "num_key_value_heads": 32,
              "head_dim": 128, "max_position_embeddings": 32768, "attention_bias": False, "hidden_act": "silu"},
        only=ACTIVATION,
        without_effect=PLAIN,
    ),
    "gemma": Fields(
        used={**GEMMA, "hidden_size": 3072, "intermediate_size": 24576, "num_hidden_layers": 28,
              "num_attention_heads": 16, "num_key_value_heads": 16, "hidden_act": "gelu_pytorch_tanh"},
        only={"hidden_act": GELU, **ONE_WAY},
        without_effect=PLAIN | names("hidden_activation"),
    ),
    "gemma2": Fields(
        used=GEMMA2,
        only={"hidden_activation": GELU, **ONE_WAY},
        without_effect=PLAIN | names("hidden_act query_pre_attn_scalar"),
    ),
    "gemma3_text": Fields(
        used={**GEMMA2, "vocab_size": 262208, "max_position_embeddings": 131072, "final_logit_softcapping": None,
              "attn_logit_softcapping": None, "sliding_window_pattern": 6},
        only={"hidden_activation": GELU, "use_bidirectional_attention": (False, None)},
        without_effect=PLAIN | names("query_pre_attn_scalar rope_local_base_freq _sliding_window_pattern"),
    ),
    "phi3": Fields(
        used={**TAKEN, "vocab_size": 32064, "hidden_size": 3072, "intermediate_size": 8192,
              "max_position_embeddings": 4096, "sliding_window": None, "partial_rotary_factor": 1.0,
              "rope_type": "default", "original_max_position_embeddings": 4096, "hidden_act": "silu",
              "resid_pdrop": 0.0},
        # su and yarn are older names of its longrope, which keeps one vector of frequencies where others keep two.
        only={**ACTIVATION, "rope_type": ("default", "longrope", "su", "yarn"), "attention_bias": (False,),
              "mlp_bias": (False,), "lm_head_bias": (False,)},
        without_effect=PLAIN | names("interpolate_factor full_attn_mod embd_pdrop"),
    ),
    "olmo2": Fields(
        used={**SIZES, "vocab_size": 50304, "attention_bias": False, "hidden_act": "silu", "attention_dropout": 0.0},
        only=ACTIVATION,
        without_effect=PLAIN,
    ),
    "granite": Fields(
        used={**SIZES, "attention_bias": False, "mlp_bias": False, "hidden_act": "silu", "attention_dropout": 0.0},
        only=ACTIVATION,
        without_effect=PLAIN
        | names("embedding_multiplier logits_scaling residual_multiplier attention_multiplier"),  # numbers
    ),
    "smollm3": Fields(
        used={**SIZES, "vocab_size": 128256, "hidden_size": 2048, "num_hidden_layers": 36, "num_attention_heads": 16,
              "num_key_value_heads": 4, "max_position_embeddings": 32768, "tie_word_embeddings": True,
              "attention_bias": False, "mlp_bias": False, "use_sliding_window": False, "sliding_window": None,
              "layer_types": None, "no_rope_layers": None, "no_rope_layer_interval": 4, "hidden_act": "silu",
              "attention_dropout": 0.0},
        only=ACTIVATION,
        without_effect=PLAIN | names("max_window_layers pretraining_tp"),
    ),
}  # fmt: skip
