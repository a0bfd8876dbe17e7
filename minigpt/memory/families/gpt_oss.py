"""gpt_oss: a mixture of experts with biases, attention with a sink for each head (transformers' modeling_gpt_oss).

Attention is the eager one whatever the plan says, since transformers has no other here for training on a plain
installation: the scores get a column more, the sinks', and their largest is taken off before the softmax. Every other
layer has a sliding window, which changes the mask's numbers and not its size. peft's "all-linear" is q, k, v and o.

Left out: MXFP4, in which the published weights are; to train them, transformers makes them 16-bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from minigpt.memory.engine import ops, routing, views
from minigpt.memory.engine.layers import Layers
from minigpt.memory.engine.tape import Value
from minigpt.memory.families.architecture import Tensor
from minigpt.memory.families.decoder import cached, heads, merged, rms_norm_in_float32
from minigpt.memory.families.experts import Experts
from minigpt.memory.families.rotary import FULL, SLIDING


@dataclass(frozen=True, kw_only=True)
class GptOss(Experts):
    masked: ClassVar[tuple[str, ...]] = (FULL, SLIDING)
    adapts_experts: ClassVar[bool] = False

    @classmethod
    def read_more(cls, config: dict[str, Any]) -> dict[str, Any]:
        bias, n_layer = config["attention_bias"], config["num_hidden_layers"]
        return dict(
            qkv_bias=bias, o_bias=bias, expert_inner=config["intermediate_size"], n_expert=config["num_local_experts"],
            top_k=config["num_experts_per_tok"], window=config["sliding_window"],
            layer_types=tuple(config["layer_types"] or ([SLIDING, FULL] * n_layer)[:n_layer]),
        )  # fmt: skip

    # ------------------------------------------------------------ tensors

    def attention_tensors(self) -> list[Tensor]:
        return [Tensor("sinks", (self.n_head,), "sinks")] + super().attention_tensors()

    def expert_tensors(self) -> list[Tensor]:
        E = self.n_expert
        out = [self.router(), Tensor("router.bias", (E,), "bias")]
        for stack in self.stacks():
            _, n_out, n_in = stack.shape
            out.append(Tensor(stack.name, (E, n_in, n_out), "experts"))
            out.append(Tensor(f"{stack.name}.bias", (E, n_out), "bias"))
        return out

    # ------------------------------------------------------------ forward

    def masks(self, layers: Layers, embedded: Value) -> Sequence[Value]:
        """Eager attention's, both, whatever the plan says."""
        B, T, _ = embedded.shape
        made = {kind: layers.tape.new((B, 1, T, T), embedded.dtype) for kind in self.masked}
        return [made[kind] for kind in self.kinds] + list(made.values())

    @property
    def rotary_width(self) -> int:
        return self.head_dim // 2

    def norm(self, layers: Layers, x: Value, name: str) -> Value:
        return rms_norm_in_float32(layers, x, name)

    def block(self, layers: Layers, hidden: Value, *, at: str, **shared) -> Value:
        residual = hidden
        hidden = self.norm(layers, hidden, at + "attn_norm")
        hidden, _other = self.attention(layers, hidden, at=at, **shared)
        hidden = ops.add(residual, hidden)
        residual = hidden
        hidden = self.norm(layers, hidden, at + "mlp_norm")
        hidden, _other = self.mixed(layers, hidden, at)
        return ops.add(residual, hidden)

    def attention(
        self, layers: Layers, hidden: Value, *, at: str, positions: Value, cos: Value, sin: Value, mask: Value | None
    ) -> tuple[Value, Value | None]:
        assert mask is not None  # see masks
        q, k, v = (heads(layers(hidden, at + name), self.head_dim) for name in "qkv")
        cos, sin = views.unsqueeze(cos, 1), views.unsqueeze(sin, 1)
        q, k = _rotated(q, cos, sin), _rotated(k, cos, sin)
        k, v = cached(layers, k, v)
        y, weights = _eager(q, k, v, mask, layers[at + "sinks"], self.attention_dropout)
        return layers(y, at + "o"), weights

    def mixed(self, layers: Layers, x: Value, at: str) -> tuple[Value, Value]:
        B, T, C = x.shape
        x = views.view(x, -1, C)
        _logits, weights, chosen = self.route(layers, x, at + "router")
        x = self.experts(layers, x, chosen, weights, at + "experts.")
        return views.view(x, B, T, C), weights

    def route(self, layers: Layers, x: Value, name: str) -> tuple[Value, Value, Value]:
        logits = layers.plain(x, name)
        best, chosen = routing.topk(logits, self.top_k)
        return logits, ops.softmax(best), chosen

    def upright(self, weight: Value) -> Value:
        return weight

    def gated(self, x: Value) -> Value:
        """(up + 1) * gate * sigmoid(1.702 gate), each within bounds, gate and up in turn."""
        gate, up = views.every_other(x), views.every_other(x)
        gate = ops.clamp(gate, 1)
        up = ops.clamp(up, 2)
        glu = ops.multiply(gate, ops.sigmoid(ops.scale(gate)))
        return ops.multiply(ops.shift(up), glu)


def _rotated(x: Value, cos: Value, sin: Value) -> Value:
    first_half, second_half = views.split(x, [x.shape[-1] // 2] * 2)
    first = ops.subtract(ops.multiply(first_half, cos), ops.multiply(second_half, sin))
    second = ops.add(ops.multiply(second_half, cos), ops.multiply(first_half, sin))
    return ops.cat([first, second])


def _eager(q: Value, k: Value, v: Value, mask: Value, sinks: Value, dropout: float) -> tuple[Value, Value]:
    B, H, T, _ = q.shape
    keys, values = (views.repeat_heads(x, H // k.shape[1]) for x in (k, v))
    weights = ops.scale(ops.matmul(q, views.transpose(keys, 2, 3)))
    weights = ops.add(weights, mask)
    sinks = views.expand(views.view(sinks, 1, -1, 1, 1), B, -1, T, -1)
    combined = ops.cat([weights, sinks])
    combined = ops.subtract(combined, ops.largest_of_last(combined))
    shares = ops.softmax(combined)
    scores = views.narrow(shares, 3, T)
    weights = ops.cast(ops.dropout(scores, dropout), v.dtype)
    y = ops.matmul(weights, values)
    y = views.contiguous(views.transpose(y, 1, 2))
    return merged(y), weights
