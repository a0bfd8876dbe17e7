"""Small models for comparisons: a configuration for each family, and for each field of it that changes bytes.

``tools.accuracy`` and tests train them; ``tools.cases`` says under which plans.
"""

from __future__ import annotations

from typing import Any

from minigpt.model import GPTConfig

NO_TOKENS = dict(pad_token_id=None, bos_token_id=None, eos_token_id=None)


def llama(**changes) -> dict:
    """A small llama-family configuration, as a config.json's contents."""
    sizes = dict(
        model_type="llama", vocab_size=512, hidden_size=64, intermediate_size=176, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, head_dim=16, max_position_embeddings=2048, **NO_TOKENS,
    )  # fmt: skip
    return {**sizes, **changes}


def gpt2(**changes) -> dict:
    sizes = dict(
        model_type="gpt2", vocab_size=512, n_embd=64, n_layer=3, n_head=4, n_positions=256, resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0, loss_type="ForCausalLM", **NO_TOKENS,
    )  # fmt: skip
    return {**sizes, **changes}


def older(family: str, **changes) -> dict:
    """A small model of a family without grouped heads."""
    sizes = dict(
        model_type=family, vocab_size=512, hidden_size=64, num_hidden_layers=3, num_attention_heads=4, **NO_TOKENS
    )
    return {**sizes, **({} if family == "bloom" else dict(max_position_embeddings=256)), **changes}


def mixture(family: str, **changes) -> dict:
    """A small mixture of experts, of which a token has two."""
    return llama(**{"model_type": family, "num_experts_per_tok": 2, **changes})


EIGHT = dict(num_experts=8, moe_intermediate_size=48)
LATENT = dict(
    n_routed_experts=8, moe_intermediate_size=48, n_group=2, topk_group=1, first_k_dense_replace=1, kv_lora_rank=64,
    q_lora_rank=64, qk_rope_head_dim=16, qk_nope_head_dim=32, v_head_dim=48, num_key_value_heads=4, head_dim=16,
)  # fmt: skip
ONE_STEP = dict(
    q_lora_rank=None, v_head_dim=32, n_group=1, attention_bias=True, rope_interleave=False, norm_topk_prob=False,
    n_shared_experts=2, tie_word_embeddings=True,
)  # fmt: skip
DROPPED = dict(resid_pdrop=0.1, embd_pdrop=0.1)
MODELS: dict[str, Any] = {
    "minigpt": GPTConfig(n_layer=3, n_embd=64, n_head=4, vocab_size=256, context=256),
    "minigpt-nano": GPTConfig.preset("nano"),
    "minigpt-micro": GPTConfig.preset("micro"),
    "minigpt-16-tokens": GPTConfig(n_layer=2, n_embd=64, n_head=4, vocab_size=16),  # peak inside a block
    "minigpt-5000-tokens": GPTConfig(n_layer=1, n_embd=64, n_head=4, vocab_size=5000),  # peak at the tied head
    "minigpt-uneven": GPTConfig(n_layer=3, n_embd=36, n_head=4, vocab_size=257),  # no side divides by 2 and 4
    "llama-grouped": llama(),
    "llama-ungrouped": llama(num_key_value_heads=4, num_hidden_layers=5),  # segments of 2, 2 and 1 blocks
    "llama-one-key-head": llama(num_key_value_heads=1),
    "llama-tied": llama(tie_word_embeddings=True, vocab_size=3000),
    "llama-biased": llama(attention_bias=True, mlp_bias=True, vocab_size=16),
    "llama-dropout": llama(attention_dropout=0.1, hidden_act="gelu_new"),
    "mistral": llama(model_type="mistral"),
    "mistral-window": llama(model_type="mistral", sliding_window=64),
    "qwen2-tied": llama(model_type="qwen2", tie_word_embeddings=True),
    "qwen3-wide-heads": llama(model_type="qwen3", head_dim=32),
    "mixtral": mixture("mixtral", num_local_experts=8, intermediate_size=48),
    "qwen2-moe": mixture("qwen2_moe", **EIGHT, shared_expert_intermediate_size=128),
    "qwen3-moe": mixture("qwen3_moe", **EIGHT, decoder_sparse_step=2, num_hidden_layers=4, attention_bias=True),
    "qwen2-moe-window": mixture(
        "qwen2_moe", **EIGHT, use_sliding_window=True, sliding_window=64, attention_dropout=0.1
    ),
    "qwen3-moe-window": mixture(
        "qwen3_moe", **EIGHT, use_sliding_window=True, sliding_window=80, hidden_act="gelu_new"
    ),
    "gpt-oss": mixture("gpt_oss", num_local_experts=8, intermediate_size=48, sliding_window=32),
    "deepseek-v3": mixture("deepseek_v3", **LATENT),
    "deepseek-v3-narrow-values": mixture("deepseek_v3", **{**LATENT, **ONE_STEP}),
    "gpt2": gpt2(),
    "gpt2-fused-gelu": gpt2(activation_function="gelu_pytorch_tanh"),
    "gpt2-untied": gpt2(tie_word_embeddings=False),
    "gpt2-dropout": gpt2(**DROPPED, attn_pdrop=0.1),
    "phi3": llama(model_type="phi3", tie_word_embeddings=True),
    "phi3-partly-rotated": llama(model_type="phi3", partial_rotary_factor=0.75, sliding_window=80, resid_pdrop=0.1),
    "phi": llama(model_type="phi"),
    "phi-dropout": llama(model_type="phi", hidden_act="gelu", tie_word_embeddings=True, **DROPPED),
    "gemma": llama(model_type="gemma", num_key_value_heads=1),
    "gemma2": llama(model_type="gemma2", head_dim=24),
    "gemma2-window": llama(model_type="gemma2", sliding_window=64, attn_logit_softcapping=None),
    "gemma3": llama(model_type="gemma3_text", tie_word_embeddings=False),
    "gemma3-window": llama(model_type="gemma3_text", sliding_window=96, sliding_window_pattern=2),
    "granite": llama(model_type="granite", attention_dropout=0.1, logits_scaling=8.0),
    "smollm3": llama(model_type="smollm3", num_hidden_layers=4, use_sliding_window=True, sliding_window=80),
    "olmo2": llama(model_type="olmo2", num_key_value_heads=1, attention_bias=True),
    "starcoder2": llama(model_type="starcoder2", sliding_window=80, residual_dropout=0.1, embedding_dropout=0.1),
    "gpt-neox": older("gpt_neox", intermediate_size=256),
    "gpt-neox-serial": older("gpt_neox", intermediate_size=256, use_parallel_residual=False, hidden_dropout=0.1),
    "falcon": older("falcon"),
    "falcon-grouped": older("falcon", new_decoder_architecture=True, num_kv_heads=2, bias=True),
    "falcon-serial": older("falcon", multi_query=False, parallel_attn=False, bias=True, hidden_dropout=0.1),
    "falcon-alibi": older("falcon", multi_query=False, alibi=True, attention_dropout=0.1),
    "opt": older("opt", ffn_dim=256, dropout=0.1, word_embed_proj_dim=64),
    "opt-narrow": older("opt", ffn_dim=256, dropout=0.0, word_embed_proj_dim=32, do_layer_norm_before=False),
    "bloom": older("bloom", hidden_dropout=0.1),
}
MIXTURES = tuple(name for name, model in MODELS.items() if isinstance(model, dict) and "num_experts_per_tok" in model)


def family(name: str) -> str:
    """The model_type of a model of ``MODELS``."""
    return MODELS[name]["model_type"] if isinstance(MODELS[name], dict) else "minigpt"


# Model types that predict does not know, as large as transformers makes them by default.
MEASURED_ONLY = [
    dict(model_type="stablelm"), dict(model_type="cohere"), dict(model_type="gptj"), dict(model_type="codegen"),
    dict(model_type="nemotron", num_key_value_heads=8), dict(model_type="glm"), dict(model_type="exaone4"),
    dict(model_type="mamba"), dict(model_type="gpt_bigcode"), dict(model_type="bart"),
]  # fmt: skip
