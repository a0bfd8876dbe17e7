"""gemma3_text: gemma2 with norms over each head's queries and keys, rotations by kind of layer (modeling_gemma3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from minigpt.memory.engine.layers import Layers
from minigpt.memory.engine.tape import Value
from minigpt.memory.families.architecture import Tensor, norm
from minigpt.memory.families.gemma2 import Gemma2
from minigpt.memory.families.rotary import rotations


@dataclass(frozen=True, kw_only=True)
class Gemma3(Gemma2):
    @classmethod
    def read_more(cls, config: dict[str, Any]) -> dict[str, Any]:
        return {**super().read_more(config), "capped_scores": False}  # whatever the file says

    def attention_tensors(self) -> list[Tensor]:
        return super().attention_tensors() + norm("q_norm", self.head_dim) + norm("k_norm", self.head_dim)

    def projected(self, layers: Layers, hidden: Value, at: str) -> tuple[Value, Value, Value]:
        q, k, v = super().projected(layers, hidden, at)
        q = self.norm(layers, q, at + "q_norm")
        k = self.norm(layers, k, at + "k_norm")
        return q, k, v

    def turns(self, hidden: Value, positions: Value) -> dict[str, tuple[Value, Value]]:
        kinds = set(self.layer_types)
        return {kind: rotations(hidden, positions, self.rotary_width, self.rotary_dim // 2) for kind in kinds}

    def buffers(self) -> list[int]:
        return super().buffers() * len(set(self.layer_types))
