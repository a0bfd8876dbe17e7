"""mistral: llama without biases, with a sliding window (transformers' modeling_mistral)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from minigpt.memory.engine.layers import Layers
from minigpt.memory.engine.tape import Value
from minigpt.memory.families.llama import Llama


@dataclass(frozen=True, kw_only=True)
class Mistral(Llama):
    defaults: ClassVar[dict] = {
        **Llama.defaults, "intermediate_size": 14336, "num_key_value_heads": 8, "max_position_embeddings": 131072,
    }  # fmt: skip

    @classmethod
    def read_more(cls, get) -> dict:
        return {}

    def cached(self, layers: Layers, k: Value, v: Value) -> tuple[Value, Value]:
        """The cache of a sliding window counts the tokens of each layer."""
        k, v = super().cached(layers, k, v)
        if layers.plan.use_cache:
            layers.outputs.append(layers.tape.new((1,), "int64"))
        return k, v
