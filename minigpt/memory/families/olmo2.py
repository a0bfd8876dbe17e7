"""olmo2: llama with its norms after attention and MLP, and over all queries and keys (transformers' modeling_olmo2).

The norms multiply by their weight in float32, and rotations are float32 too: in a 16-bit model these are copies that
llama has not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from minigpt.memory.engine import ops
from minigpt.memory.engine.layers import Layers
from minigpt.memory.engine.tape import Value
from minigpt.memory.families.architecture import Tensor, norm
from minigpt.memory.families.decoder import heads, rms_norm_in_float32
from minigpt.memory.families.llama import Llama
from minigpt.memory.families.rotary import FULL, rotate


@dataclass(frozen=True, kw_only=True)
class Olmo2(Llama):
    @classmethod
    def read_more(cls, config: dict[str, Any]) -> dict[str, Any]:
        return dict(qkv_bias=config["attention_bias"], o_bias=config["attention_bias"])

    def attention_tensors(self) -> list[Tensor]:
        norms = norm("q_norm", self.n_head * self.head_dim) + norm("k_norm", self.n_kv_head * self.head_dim)
        return super().attention_tensors() + norms

    def block(self, layers: Layers, hidden: Value, *, at: str, **shared) -> Value:
        residual = hidden
        hidden, _weights = self.attention(layers, hidden, at=at, **shared)
        hidden = self.norm(layers, hidden, at + "attn_norm")
        hidden = ops.add(residual, hidden)
        residual = hidden
        hidden = self.mlp(layers, hidden, at)
        hidden = self.norm(layers, hidden, at + "mlp_norm")
        return ops.add(residual, hidden)

    def projected(self, layers: Layers, hidden: Value, at: str) -> tuple[Value, Value, Value]:
        q = self.norm(layers, layers(hidden, at + "q"), at + "q_norm")
        k = self.norm(layers, layers(hidden, at + "k"), at + "k_norm")
        v = layers(hidden, at + "v")
        return heads(q, self.head_dim), heads(k, self.head_dim), heads(v, self.head_dim)

    def turned(self, q: Value, k: Value, cos: Value, sin: Value, at: str) -> tuple[Value, Value]:
        q_turned, k_turned = rotate(q, k, cos, sin)
        return ops.cast(q_turned, q.dtype), ops.cast(k_turned, k.dtype)

    def turns(self, hidden: Value, positions: Value) -> dict[str, tuple[Value, Value]]:
        tape, shape = hidden.storage.tape, (*positions.shape, self.head_dim)
        tape.multiplied(positions.numel, 1, self.rotary_width // 2)  # frequencies times positions
        return {FULL: (tape.new(shape, "float32"), tape.new(shape, "float32"))}

    def norm(self, layers: Layers, x: Value, name: str) -> Value:
        return rms_norm_in_float32(layers, x, name)
