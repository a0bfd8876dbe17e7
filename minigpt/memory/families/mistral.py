"""mistral: llama without biases, with a sliding window (transformers' modeling_mistral)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from minigpt.memory.families.llama import Llama, windowed


@dataclass(frozen=True, kw_only=True)
class Mistral(Llama):
    defaults: ClassVar[dict] = {
        **Llama.defaults, "intermediate_size": 14336, "num_key_value_heads": 8, "max_position_embeddings": 131072,
        "sliding_window": 4096,
    }  # fmt: skip

    @classmethod
    def read_more(cls, get) -> dict:
        return windowed(get)
