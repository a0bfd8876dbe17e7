"""olmo2: llama with its norms after attention and MLP, and over all queries and keys (transformers' modeling_olmo2).

The norms multiply by their weight in float32, and rotations are float32 too: in a 16-bit model these are copies that
llama has not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from minigpt.memory.engine import ops
from minigpt.memory.engine.layers import Layers
from minigpt.memory.engine.tape import Value
from minigpt.memory.families.architecture import Tensor, norm
from minigpt.memory.families.decoder import FULL, attend, cached, heads, rms_norm_in_float32, rotate
from minigpt.memory.families.llama import Llama
from minigpt.values import check_flags


@dataclass(frozen=True, kw_only=True)
class Olmo2(Llama):
    defaults: ClassVar[dict] = {**Llama.defaults, "vocab_size": 50304}

    @classmethod
    def read_more(cls, get) -> dict:
        bias = get("attention_bias", False)
        check_flags(attention_bias=bias)
        return dict(qkv_bias=bias, o_bias=bias)

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

    def attention(
        self, layers: Layers, hidden: Value, *, at: str, positions: Value, cos: Value, sin: Value, mask: Value | None
    ) -> tuple[Value, Value | None]:
        q = self.norm(layers, layers(hidden, at + "q"), at + "q_norm")
        k = self.norm(layers, layers(hidden, at + "k"), at + "k_norm")
        v = layers(hidden, at + "v")
        q, k, v = heads(q, self.head_dim), heads(k, self.head_dim), heads(v, self.head_dim)
        q, k = self.turned(q, k, cos, sin, at)
        k, v = cached(layers, k, v)
        y, weights = attend(layers, q, k, v, mask, self.attention_dropout)
        return layers(y, at + "o"), weights

    def turned(self, q: Value, k: Value, cos: Value, sin: Value, at: str) -> tuple[Value, Value]:
        q_turned, k_turned = rotate(q, k, cos, sin)
        return ops.cast(q_turned, q.dtype), ops.cast(k_turned, k.dtype)

    def turns(self, hidden: Value, positions: Value) -> dict[str, tuple[Value, Value]]:
        tape, shape = hidden.storage.tape, (*positions.shape, self.head_dim)
        return {FULL: (tape.new(shape, "float32"), tape.new(shape, "float32"))}

    def norm(self, layers: Layers, x: Value, name: str) -> Value:
        return rms_norm_in_float32(layers, x, name)
