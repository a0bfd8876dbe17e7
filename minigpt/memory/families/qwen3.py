"""qwen3: llama with a norm over each head's queries and keys (transformers' modeling_qwen3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from minigpt.memory.engine import views
from minigpt.memory.engine.layers import Layers
from minigpt.memory.engine.tape import Value
from minigpt.memory.families.architecture import Tensor, norm
from minigpt.memory.families.decoder import heads
from minigpt.memory.families.llama import Llama
from minigpt.memory.families.qwen2 import Qwen2, windows


@dataclass(frozen=True, kw_only=True)
class Qwen3(Llama):
    masked: ClassVar[tuple[str, ...]] = Qwen2.masked

    @classmethod
    def read_more(cls, config: dict[str, Any]) -> dict[str, Any]:
        bias = config["attention_bias"]
        return dict(qkv_bias=bias, o_bias=bias, **windows(config))

    def attention_tensors(self) -> list[Tensor]:
        return super().attention_tensors() + norm("q_norm", self.head_dim) + norm("k_norm", self.head_dim)

    def projected(self, layers: Layers, hidden: Value, at: str) -> tuple[Value, Value, Value]:
        q = self._normed(layers, hidden, at + "q")
        k = self._normed(layers, hidden, at + "k")
        v = heads(layers(hidden, at + "v"), self.head_dim)
        return q, k, v

    def _normed(self, layers: Layers, hidden: Value, name: str) -> Value:
        B, T, _ = hidden.shape
        x = views.view(layers(hidden, name), B, T, -1, self.head_dim)
        return views.transpose(self.norm(layers, x, name + "_norm"), 1, 2)
