"""The families with LayerNorm and a plain MLP, most of them older. Defaults are transformers 5.17's."""

from __future__ import annotations

from minigpt.memory.families.fields.shared import ROTARY, Fields, activations, names

LAYER_NORMS = {
    "gpt2": Fields(
        used=dict(
            vocab_size=50257, n_positions=1024, n_embd=768, n_layer=12, n_head=12, n_inner=None,
            activation_function="gelu_new", tie_word_embeddings=True, resid_pdrop=0.1, embd_pdrop=0.1, attn_pdrop=0.1,
        ),
        only={"activation_function": activations("gelu_new"), "reorder_and_upcast_attn": (False,)},
        without_effect=names("layer_norm_epsilon scale_attn_weights scale_attn_by_inverse_layer_idx n_ctx"),
        aliases={"hidden_size": "n_embd", "max_position_embeddings": "n_positions", "num_attention_heads": "n_head",
                 "num_hidden_layers": "n_layer"},
        rotary=False,
    ),
    "phi": Fields(
        used=dict(
            vocab_size=51200, hidden_size=2048, intermediate_size=8192, num_hidden_layers=24, num_attention_heads=32,
            num_key_value_heads=None, head_dim=None, max_position_embeddings=2048, tie_word_embeddings=False,
            qk_layernorm=False, partial_rotary_factor=0.5, hidden_act="gelu_new", attention_dropout=0.0,
            resid_pdrop=0.0, embd_pdrop=0.0,
        ),
        only={"hidden_act": activations("gelu_new")},
        without_effect=ROTARY | names("layer_norm_eps"),
    ),
    "gpt_neox": Fields(
        used=dict(
            vocab_size=50432, hidden_size=6144, intermediate_size=24576, num_hidden_layers=44, num_attention_heads=64,
            max_position_embeddings=2048, tie_word_embeddings=False, use_parallel_residual=True, attention_bias=True,
            rotary_pct=0.25, hidden_act="gelu", attention_dropout=0.0, hidden_dropout=0.0,
        ),
        only={"hidden_act": activations("gelu")},
        without_effect=ROTARY | names("layer_norm_eps classifier_dropout rotary_emb_base"),
        rotary_part="rotary_pct",
    ),
    "falcon": Fields(
        used=dict(
            vocab_size=65024, hidden_size=4544, num_hidden_layers=32, num_attention_heads=71, num_kv_heads=None,
            num_ln_in_parallel_attn=None, new_decoder_architecture=False, multi_query=True,
            parallel_attn=True, bias=False, alibi=False, ffn_hidden_size=None, max_position_embeddings=2048,
            tie_word_embeddings=True, activation="gelu", attention_dropout=0.0, hidden_dropout=0.0,
        ),
        only={"activation": activations("gelu")},
        without_effect=ROTARY | names("layer_norm_epsilon apply_residual_connection_post_layernorm"),
        aliases={"n_embed": "hidden_size"},
    ),
    "starcoder2": Fields(
        used=dict(
            vocab_size=49152, hidden_size=3072, intermediate_size=12288, num_hidden_layers=30, num_attention_heads=24,
            num_key_value_heads=2, head_dim=None, max_position_embeddings=4096, sliding_window=None, use_bias=True,
            tie_word_embeddings=True, hidden_act="gelu_pytorch_tanh", attention_dropout=0.0,
            residual_dropout=0.0, embedding_dropout=0.0,
        ),
        only={"hidden_act": activations("gelu_pytorch_tanh"), "mlp_type": ("default",), "norm_type": ("layer_norm",)},
        without_effect=ROTARY | names(
            """norm_epsilon layer_norm_epsilon activation_function scale_attn_weights attention_softmax_in_fp32
            scale_attention_softmax_in_fp32"""
        ),
    ),
    "opt": Fields(
        used=dict(
            vocab_size=50272, hidden_size=768, num_hidden_layers=12, ffn_dim=3072, max_position_embeddings=2048,
            num_attention_heads=12, word_embed_proj_dim=None, do_layer_norm_before=True,
            _remove_final_layer_norm=False, enable_bias=True, layer_norm_elementwise_affine=True,
            tie_word_embeddings=True, activation_function="relu", dropout=0.1, attention_dropout=0.0,
        ),
        only={"activation_function": activations("relu"), "layerdrop": (0.0,)},
        without_effect=names("init_std activation_dropout"),
        rotary=False,
    ),
    "bloom": Fields(
        used=dict(
            vocab_size=250880, hidden_size=64, n_layer=2, n_head=8, tie_word_embeddings=True,
            apply_residual_connection_post_layernorm=False, attention_dropout=0.0, hidden_dropout=0.0,
        ),
        only={"slow_but_exact": (False,)},
        without_effect=names(  # pretraining_tp needs slow_but_exact
            """layer_norm_epsilon pretraining_tp offset_alibi seq_length attention_softmax_in_fp32 bias_dropout_fusion
            masked_softmax_fusion skip_bias_add skip_bias_add_qkv"""
        ),
        aliases={"num_hidden_layers": "n_layer", "num_attention_heads": "n_head", "n_embed": "hidden_size"},
        rotary=False,
    ),
}  # fmt: skip
