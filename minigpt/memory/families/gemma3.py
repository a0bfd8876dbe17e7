"""gemma3_text: gemma2 with norms over each head's queries and keys, rotations by kind of layer (modeling_gemma3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from minigpt.memory.engine.layers import Layers
from minigpt.memory.engine.tape import Value
from minigpt.memory.families.architecture import Tensor, norm
from minigpt.memory.families.decoder import attend, cached, heads, rotations
from minigpt.memory.families.gemma2 import Gemma2


@dataclass(frozen=True, kw_only=True)
class Gemma3(Gemma2):
    defaults: ClassVar[dict] = {
        **Gemma2.defaults, "vocab_size": 262208, "max_position_embeddings": 131072, "sliding_window_pattern": 6,
        "final_logit_softcapping": None, "attn_logit_softcapping": None,
    }  # fmt: skip

    @classmethod
    def read_more(cls, get) -> dict:
        return {**super().read_more(get), "capped_scores": False}  # whatever the file says

    def attention_tensors(self) -> list[Tensor]:
        return super().attention_tensors() + norm("q_norm", self.head_dim) + norm("k_norm", self.head_dim)

    def attention(
        self, layers: Layers, hidden: Value, *, at: str, positions: Value, cos: Value, sin: Value, mask: Value | None
    ) -> tuple[Value, Value | None]:
        q = heads(layers(hidden, at + "q"), self.head_dim)
        k = heads(layers(hidden, at + "k"), self.head_dim)
        v = heads(layers(hidden, at + "v"), self.head_dim)
        q = self.norm(layers, q, at + "q_norm")
        k = self.norm(layers, k, at + "k_norm")
        q, k = self.turned(q, k, cos, sin, at)
        k, v = cached(layers, k, v)
        y, weights = attend(layers, q, k, v, mask, self.attention_dropout)
        return layers(y, at + "o"), weights

    def turns(self, hidden: Value, positions: Value) -> dict[str, tuple[Value, Value]]:
        return {kind: rotations(hidden, positions, self.rotary_width) for kind in set(self.layer_types)}

    def buffers(self) -> list[int]:
        return super().buffers() * len(set(self.layer_types))
