"""Sizes of published models, from their config.json files, so that the arithmetic needs no network."""

from __future__ import annotations


def _llama(C: int, inner: int, layers: int, heads: int, kv: int | None = None, V: int = 32000, **more) -> dict:
    return dict(
        model_type="llama", hidden_size=C, intermediate_size=inner, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=kv or heads, vocab_size=V, **more,
    )  # fmt: skip


# The sizes in the models' published config.json files, so that the arithmetic needs no network.
KNOWN = {
    "llama-7b": _llama(4096, 11008, 32, 32),
    "llama-13b": _llama(5120, 13824, 40, 40),
    "llama-30b": _llama(6656, 17920, 60, 52),
    "llama-65b": _llama(8192, 22016, 80, 64),
    "llama-2-70b": _llama(8192, 28672, 80, 64, 8, max_position_embeddings=4096),
    "llama-3-8b": _llama(4096, 14336, 32, 32, 8, 128256, max_position_embeddings=8192),
    "llama-3.2-1b": _llama(2048, 8192, 16, 32, 8, 128256, tie_word_embeddings=True, max_position_embeddings=131072),
    "llama-3.2-3b": _llama(3072, 8192, 28, 24, 8, 128256, tie_word_embeddings=True, max_position_embeddings=131072),
    "tinyllama-1.1b": _llama(2048, 5632, 22, 32, 4),
    "smollm2-135m": _llama(576, 1536, 30, 9, 3, 49152, tie_word_embeddings=True, max_position_embeddings=8192),
    "smollm2-1.7b": _llama(2048, 8192, 24, 32, V=49152, tie_word_embeddings=True, max_position_embeddings=8192),
    "mistral-7b": {**_llama(4096, 14336, 32, 32, 8, max_position_embeddings=32768), "model_type": "mistral"},
    "qwen3-8b": {**_llama(4096, 12288, 36, 32, 8, 151936, head_dim=128, max_position_embeddings=40960),
                 "model_type": "qwen3"},
    "qwen2.5-0.5b": {**_llama(896, 4864, 24, 14, 2, 151936, tie_word_embeddings=True, max_position_embeddings=32768),
                     "model_type": "qwen2"},
    "qwen2.5-1.5b": {**_llama(1536, 8960, 28, 12, 2, 151936, tie_word_embeddings=True, max_position_embeddings=32768),
                     "model_type": "qwen2"},
    "gpt2": dict(model_type="gpt2", resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0),
}  # fmt: skip
