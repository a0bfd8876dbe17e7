"""qwen2: llama with biases on q, k and v (transformers' modeling_qwen2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from minigpt.memory.families.llama import Llama


@dataclass(frozen=True, kw_only=True)
class Qwen2(Llama):
    defaults: ClassVar[dict] = {
        **Llama.defaults, "vocab_size": 151936, "intermediate_size": 22016, "num_key_value_heads": 32,
        "max_position_embeddings": 32768,
    }  # fmt: skip

    @classmethod
    def read_more(cls, get) -> dict:
        return dict(qkv_bias=True)
