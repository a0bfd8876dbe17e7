"""The sizes in published config.json files, by short name, so that the arithmetic needs no network.

Where the files of one model differ in the context alone, it is the instruct model's. Dropout is 0 in all of them, also
where the file has 0.1 (``WITH_DROPOUT``), which a config.json of one's own keeps. Gemma 3's are the text
models, deepseek-v3 is without its extra prediction layer, and gpt-oss without MXFP4.

Sources: LitGPT 0.5.13 (config.py) and aiconfigurator 0.12 (copies of the files); for what neither has, the models'
cards and papers. Every entry gives, in transformers, the number of parameters that is published (tests/test_names.py).
"""

from __future__ import annotations


def _model(model_type: str, C: int, inner: int, layers: int, heads: int, kv: int | None = None, /, **more) -> dict:
    return dict(
        model_type=model_type, hidden_size=C, intermediate_size=inner, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=kv or heads, **more,
    )  # fmt: skip


def _llama(*sizes: int, V: int = 32000, context: int | None = None, tied: bool = False, **more) -> dict:
    """llama's own context is transformers' default, 2,048."""
    more |= dict(max_position_embeddings=context) if context else {}
    return _model("llama", *sizes, vocab_size=V, **more, **(dict(tie_word_embeddings=True) if tied else {}))


def _llama3(*sizes: int, context: int = 131072, **more) -> dict:
    return _llama(*sizes, 8, V=128256, context=context, **more)


def _mistral(
    C: int, inner: int, layers: int, heads: int, *, V: int = 32000, context: int = 32768, window: int | None = None,
    **more,
) -> dict:  # fmt: skip
    more |= dict(vocab_size=V, max_position_embeddings=context, sliding_window=window)
    return _model("mistral", C, inner, layers, heads, 8, **more)


def _qwen2(*sizes: int, V: int = 152064, tied: bool = False) -> dict:
    return _model("qwen2", *sizes, vocab_size=V, max_position_embeddings=32768, tie_word_embeddings=tied)


def _qwen3(*sizes: int, tied: bool = False, context: int = 40960, kind: str = "qwen3", **more) -> dict:
    more |= dict(head_dim=128, max_position_embeddings=context, tie_word_embeddings=tied)
    return _model(kind, *sizes, vocab_size=151936, **more)


def _gemma(kind: str, *sizes: int, head: int = 256, V: int = 256000, context: int = 8192, **more) -> dict:
    more |= dict(head_dim=head, max_position_embeddings=context, tie_word_embeddings=True)
    return _model(kind, *sizes, vocab_size=V, **more)


def _phi3(*sizes: int, V: int = 32064, context: int = 4096, window: int | None = 2047) -> dict:
    return _model("phi3", *sizes, vocab_size=V, max_position_embeddings=context, sliding_window=window)


def _phi(C: int, layers: int, rotary: float) -> dict:
    more = dict(vocab_size=51200, max_position_embeddings=2048, partial_rotary_factor=rotary)
    return _model("phi", C, 4 * C, layers, 32, **more)


def _granite(C: int, inner: int, layers: int, heads: int, *, V: int) -> dict:
    more = dict(vocab_size=V, max_position_embeddings=131072, tie_word_embeddings=True)
    return _model("granite", C, inner, layers, heads, 8, **more)


def _starcoder2(C: int, layers: int, heads: int, kv: int, tied: bool = True) -> dict:
    more = dict(vocab_size=49152, max_position_embeddings=16384, sliding_window=4096, tie_word_embeddings=tied)
    return _model("starcoder2", C, 4 * C, layers, heads, kv, **more)


def _pythia(C: int, layers: int, heads: int, V: int = 50304) -> dict:
    return dict(
        model_type="gpt_neox", hidden_size=C, intermediate_size=4 * C, num_hidden_layers=layers,
        num_attention_heads=heads, vocab_size=V, max_position_embeddings=2048, tie_word_embeddings=False,
    )  # fmt: skip


def _opt(C: int, layers: int, heads: int, **more) -> dict:
    return dict(
        model_type="opt", hidden_size=C, ffn_dim=4 * C, num_hidden_layers=layers, num_attention_heads=heads,
        vocab_size=50272, max_position_embeddings=2048, dropout=0.0, **{"word_embed_proj_dim": C, **more},
    )  # fmt: skip


def _bloom(C: int, layers: int, heads: int) -> dict:
    return dict(model_type="bloom", hidden_size=C, n_layer=layers, n_head=heads, vocab_size=250880)


def _gpt2(C: int, layers: int, heads: int) -> dict:
    dropout = dict(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    return dict(model_type="gpt2", n_embd=C, n_layer=layers, n_head=heads, **dropout)


def _gpt_oss(layers: int, experts: int) -> dict:
    more = dict(vocab_size=201088, head_dim=64, max_position_embeddings=131072, sliding_window=128)
    return _model("gpt_oss", 2880, 2880, layers, 64, 8, num_local_experts=experts, num_experts_per_tok=4, **more)


# One line a model: width, MLP width, layers, heads, key-value heads, in the order of each family's function above.
KNOWN = {
    "llama-7b": _llama(4096, 11008, 32, 32),
    "llama-13b": _llama(5120, 13824, 40, 40),
    "llama-30b": _llama(6656, 17920, 60, 52),
    "llama-65b": _llama(8192, 22016, 80, 64),
    "llama-2-7b": _llama(4096, 11008, 32, 32, context=4096),
    "llama-2-13b": _llama(5120, 13824, 40, 40, context=4096),
    "llama-2-70b": _llama(8192, 28672, 80, 64, 8, context=4096),
    "codellama-7b": _llama(4096, 11008, 32, 32, V=32016, context=16384),
    "codellama-13b": _llama(5120, 13824, 40, 40, V=32016, context=16384),
    "codellama-34b": _llama(8192, 22016, 48, 64, 8, context=16384),
    "llama-3-8b": _llama3(4096, 14336, 32, 32, context=8192),
    "llama-3-70b": _llama3(8192, 28672, 80, 64, context=8192),
    "llama-3.1-8b": _llama3(4096, 14336, 32, 32),
    "llama-3.1-70b": _llama3(8192, 28672, 80, 64),
    "llama-3.1-405b": _llama3(16384, 53248, 126, 128),
    "llama-3.2-1b": _llama3(2048, 8192, 16, 32, tied=True),
    "llama-3.2-3b": _llama3(3072, 8192, 28, 24, tied=True),
    "llama-3.3-70b": _llama3(8192, 28672, 80, 64),
    "tinyllama-1.1b": _llama(2048, 5632, 22, 32, 4),
    "smollm2-135m": _llama(576, 1536, 30, 9, 3, V=49152, context=8192, tied=True),
    "smollm2-360m": _llama(960, 2560, 32, 15, 5, V=49152, context=8192, tied=True),
    "smollm2-1.7b": _llama(2048, 8192, 24, 32, V=49152, context=8192, tied=True),
    "mistral-7b": _mistral(4096, 14336, 32, 32, window=4096),
    "mistral-7b-v0.2": _mistral(4096, 14336, 32, 32),
    "mistral-7b-v0.3": _mistral(4096, 14336, 32, 32, V=32768),
    "mistral-nemo": _mistral(5120, 14336, 40, 32, V=131072, context=128000, head_dim=128),
    "qwen2.5-0.5b": _qwen2(896, 4864, 24, 14, 2, V=151936, tied=True),
    "qwen2.5-1.5b": _qwen2(1536, 8960, 28, 12, 2, V=151936, tied=True),
    "qwen2.5-3b": _qwen2(2048, 11008, 36, 16, 2, V=151936, tied=True),
    "qwen2.5-7b": _qwen2(3584, 18944, 28, 28, 4),
    "qwen2.5-14b": _qwen2(5120, 13824, 48, 40, 8),
    "qwen2.5-32b": _qwen2(5120, 27648, 64, 40, 8),
    "qwen2.5-72b": _qwen2(8192, 29568, 80, 64, 8),
    "qwen3-0.6b": _qwen3(1024, 3072, 28, 16, 8, tied=True),
    "qwen3-1.7b": _qwen3(2048, 6144, 28, 16, 8, tied=True),
    "qwen3-4b": _qwen3(2560, 9728, 36, 32, 8, tied=True),
    "qwen3-4b-2507": _qwen3(2560, 9728, 36, 32, 8, tied=True, context=262144),
    "qwen3-8b": _qwen3(4096, 12288, 36, 32, 8),
    "qwen3-14b": _qwen3(5120, 17408, 40, 40, 8),
    "qwen3-32b": _qwen3(5120, 25600, 64, 64, 8),
    "qwen3-30b-a3b": _qwen3(
        2048, 6144, 48, 32, 4, kind="qwen3_moe", moe_intermediate_size=768, num_experts=128, num_experts_per_tok=8
    ),
    "mixtral-8x7b": _model(
        "mixtral", 4096, 14336, 32, 32, 8, vocab_size=32000, max_position_embeddings=32768, sliding_window=None,
        num_local_experts=8, num_experts_per_tok=2, tie_word_embeddings=False,
    ),
    "gemma-2b": _gemma("gemma", 2048, 16384, 18, 8, 1),
    "gemma-7b": _gemma("gemma", 3072, 24576, 28, 16),
    "gemma-2-2b": _gemma("gemma2", 2304, 9216, 26, 8, 4, sliding_window=4096),
    "gemma-2-9b": _gemma("gemma2", 3584, 14336, 42, 16, 8, sliding_window=4096),
    "gemma-2-27b": _gemma("gemma2", 4608, 36864, 46, 32, 16, head=128, sliding_window=4096),
    "gemma-3-1b": _gemma("gemma3_text", 1152, 6912, 26, 4, 1, V=262144, context=32768, sliding_window=512),
    "gemma-3-4b": _gemma("gemma3_text", 2560, 10240, 34, 8, 4, V=262208, context=131072, sliding_window=1024),
    "gemma-3-12b": _gemma("gemma3_text", 3840, 15360, 48, 16, 8, V=262208, context=131072, sliding_window=1024),
    "gemma-3-27b": _gemma(
        "gemma3_text", 5376, 21504, 62, 32, 16, head=128, V=262208, context=131072, sliding_window=1024
    ),
    "phi-1.5": _phi(2048, 24, rotary=0.5),
    "phi-2": _phi(2560, 32, rotary=0.4),
    "phi-3-mini": _phi3(3072, 8192, 32, 32),
    "phi-3-medium": _phi3(5120, 17920, 40, 40, 10),
    "phi-4": _phi3(5120, 17920, 40, 40, 10, V=100352, context=16384, window=None),
    "olmo-2-7b": _model("olmo2", 4096, 11008, 32, 32, vocab_size=100352, max_position_embeddings=4096),
    "olmo-2-13b": _model("olmo2", 5120, 13824, 40, 40, vocab_size=100352, max_position_embeddings=4096),
    "granite-3.1-2b": _granite(2048, 8192, 40, 32, V=49155),
    "granite-3.1-8b": _granite(4096, 12800, 40, 32, V=49155),
    "granite-3.3-2b": _granite(2048, 8192, 40, 32, V=49159),
    "granite-3.3-8b": _granite(4096, 12800, 40, 32, V=49159),
    "smollm3-3b": _model(
        "smollm3", 2048, 11008, 36, 16, 4, vocab_size=128256, max_position_embeddings=65536, tie_word_embeddings=True
    ),
    "starcoder2-3b": _starcoder2(3072, 30, 24, 2),
    "starcoder2-7b": _starcoder2(4608, 32, 36, 4),
    "starcoder2-15b": _starcoder2(6144, 40, 48, 4, tied=False),
    "pythia-14m": _pythia(128, 6, 4),
    "pythia-31m": _pythia(256, 6, 8),
    "pythia-70m": _pythia(512, 6, 8),
    "pythia-160m": _pythia(768, 12, 12),
    "pythia-410m": _pythia(1024, 24, 16),
    "pythia-1b": _pythia(2048, 16, 8),
    "pythia-1.4b": _pythia(2048, 24, 16),
    "pythia-2.8b": _pythia(2560, 32, 32),
    "pythia-6.9b": _pythia(4096, 32, 32, V=50432),
    "pythia-12b": _pythia(5120, 36, 40, V=50688),
    "falcon-7b": dict(model_type="falcon", hidden_size=4544, num_hidden_layers=32, num_attention_heads=71,
                      vocab_size=65024, multi_query=True, parallel_attn=True, bias=False),
    "opt-125m": _opt(768, 12, 12),
    "opt-350m": _opt(1024, 24, 16, word_embed_proj_dim=512, do_layer_norm_before=False),
    "opt-1.3b": _opt(2048, 24, 32),
    "opt-2.7b": _opt(2560, 32, 32),
    "opt-6.7b": _opt(4096, 32, 32),
    "opt-13b": _opt(5120, 40, 40),
    "opt-30b": _opt(7168, 48, 56),
    "bloom-560m": _bloom(1024, 24, 16),
    "bloom-1b1": _bloom(1536, 24, 16),
    "bloom-1b7": _bloom(2048, 24, 16),
    "bloom-3b": _bloom(2560, 30, 32),
    "bloom-7b1": _bloom(4096, 30, 32),
    "bloom": _bloom(14336, 70, 112),
    "deepseek-v3": _model(
        "deepseek_v3", 7168, 18432, 61, 128, vocab_size=129280, max_position_embeddings=163840, n_routed_experts=256,
        n_shared_experts=1, num_experts_per_tok=8, moe_intermediate_size=2048, first_k_dense_replace=3,
        q_lora_rank=1536, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128,
        tie_word_embeddings=False,
    ),
    "gpt-oss-20b": _gpt_oss(24, 32),
    "gpt-oss-120b": _gpt_oss(36, 128),
    "gpt2": _gpt2(768, 12, 12),
    "gpt2-medium": _gpt2(1024, 24, 16),
    "gpt2-large": _gpt2(1280, 36, 20),
    "gpt2-xl": _gpt2(1600, 48, 25),
}  # fmt: skip

# Beginnings of the names whose config.json has dropout 0.1 somewhere, which transformers applies in training.
WITH_DROPOUT = ("gpt2", "opt-", "phi-2", "starcoder2-", "granite-3.1-")
