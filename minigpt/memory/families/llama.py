"""llama: rotary positions, RMSNorm, grouped keys and values, a gated MLP (transformers' modeling_llama).

Parameters, with C the width, I the MLP's inner width, q = n_head * head_dim and kv = n_kv_head * head_dim:

    per block   C q + 2 C kv + q C + 3 C I + 2 C     (+ biases)
    outside     V C (embedding) + V C (head, if untied) + C (last norm)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from minigpt.memory.engine import ops
from minigpt.memory.engine.layers import Layers
from minigpt.memory.engine.tape import Value
from minigpt.memory.families.activations import ACTIVATIONS
from minigpt.memory.families.architecture import Tensor, linear, norm
from minigpt.memory.families.decoder import attend, cached, eager_attention, heads
from minigpt.memory.families.rotary import SLIDING, Rotary, rotate
from minigpt.values import check_flags


@dataclass(frozen=True, kw_only=True)
class Llama(Rotary):
    """Also the parent of the families that differ from it in little."""

    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_flags(qkv_bias=self.qkv_bias, o_bias=self.o_bias, mlp_bias=self.mlp_bias)

    @classmethod
    def sizes(cls, config: dict[str, Any]) -> dict[str, Any]:
        return dict(**super().sizes(config), n_inner=config["intermediate_size"])

    @classmethod
    def read_more(cls, config: dict[str, Any]) -> dict[str, Any]:
        bias = config["attention_bias"]
        return dict(qkv_bias=bias, o_bias=bias, mlp_bias=config["mlp_bias"])

    # ------------------------------------------------------------ tensors

    def block_tensors(self, layer: int = 0) -> tuple[Tensor, ...]:
        norms = norm("attn_norm", self.n_embd) + norm("mlp_norm", self.n_embd)
        return tuple(self.attention_tensors() + self.mlp_tensors(layer) + norms)

    def attention_tensors(self) -> list[Tensor]:
        C, q, kv = self.n_embd, self.n_head * self.head_dim, self.n_kv_head * self.head_dim
        out = linear("q", q, C, self.qkv_bias) + linear("k", kv, C, self.qkv_bias)
        return out + linear("v", kv, C, self.qkv_bias) + linear("o", C, q, self.o_bias)

    def mlp_tensors(self, layer: int) -> list[Tensor]:
        C, inner = self.n_embd, self.n_inner
        out = linear("gate", inner, C, self.mlp_bias) + linear("up", inner, C, self.mlp_bias)
        return out + linear("down", C, inner, self.mlp_bias)

    # ------------------------------------------------------------ forward

    def block(self, layers: Layers, hidden: Value, *, at: str, **shared) -> Value:
        residual = hidden
        hidden = self.norm(layers, hidden, at + "attn_norm")
        hidden, _weights = self.attention(layers, hidden, at=at, **shared)  # bound to the block's end, there too
        hidden = self.added(residual, hidden)
        residual = hidden
        hidden = self.norm(layers, hidden, at + "mlp_norm")
        hidden = self.mlp(layers, hidden, at)
        return self.added(residual, hidden)

    def added(self, residual: Value, hidden: Value) -> Value:
        """The residual stream after attention, or after the MLP."""
        return ops.add(residual, hidden)

    def attention(
        self, layers: Layers, hidden: Value, *, at: str, positions: Value, cos: Value, sin: Value, mask: Value | None
    ) -> tuple[Value, Value | None]:
        """The output, and eager attention's weights, which transformers returns beside it."""
        q, k, v = self.projected(layers, hidden, at)
        q, k = self.turned(q, k, cos, sin, at)
        k, v = cached(layers, k, v)
        y, weights = attend(layers, q, k, v, mask, self.attention_dropout, self.eager)
        return layers(y, at + "o"), weights

    def projected(self, layers: Layers, hidden: Value, at: str) -> tuple[Value, Value, Value]:
        """Queries, keys and values, (B, heads, T, D) each."""
        q, k, v = (heads(layers(hidden, at + name), self.head_dim) for name in "qkv")
        return q, k, v

    def eager(self, q: Value, k: Value, v: Value, mask: Value, dropout: float) -> tuple[Value, Value]:
        return eager_attention(q, k, v, mask, dropout)

    def turned(self, q: Value, k: Value, cos: Value, sin: Value, at: str) -> tuple[Value, Value]:
        return rotate(q, k, cos, sin)

    def mlp(self, layers: Layers, x: Value, at: str) -> Value:
        gate = layers(x, at + "gate")
        activated = ACTIVATIONS[self.activation](gate)
        del gate
        up = layers(x, at + "up")
        product = ops.multiply(activated, up)
        del activated, up
        return layers(product, at + "down")


def windowed(config: dict[str, Any]) -> dict[str, Any]:
    """A window for every layer, or for none."""
    window = config["sliding_window"]
    return dict(window=window, layer_types=(SLIDING,) * config["num_hidden_layers"] if window is not None else ())
