"""gpt_oss: a mixture of experts with biases, attention with a sink for each head (transformers' modeling_gpt_oss).

Attention is the eager one whatever the plan says, since transformers has no other here for training on a plain
installation: the scores get a column more, the sinks', and their largest is taken off before the softmax. Every other
layer has a sliding window, which changes the mask's numbers and not its size. peft's "all-linear" is q, k, v and o.

Left out: MXFP4, in which the published weights are; to train them, transformers makes them 16-bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from minigpt.memory.engine import ops, routing, views
from minigpt.memory.engine.layers import Layers
from minigpt.memory.engine.tape import Value
from minigpt.memory.families.architecture import Tensor
from minigpt.memory.families.decoder import FULL, SLIDING, cached, heads, merged, rms_norm_in_float32
from minigpt.memory.families.experts import Experts
from minigpt.memory.families.llama import Llama
from minigpt.values import check_flags


@dataclass(frozen=True, kw_only=True)
class GptOss(Experts):
    masked: ClassVar[tuple[str, ...]] = (FULL, SLIDING)
    adapts_experts: ClassVar[bool] = False
    defaults: ClassVar[dict] = {
        **Llama.defaults, "vocab_size": 201088, "hidden_size": 2880, "intermediate_size": 2880,
        "num_hidden_layers": 36, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64,
        "max_position_embeddings": 131072, "attention_bias": True, "num_local_experts": 128, "num_experts_per_tok": 4,
        "sliding_window": 128,
    }  # fmt: skip

    @classmethod
    def read_more(cls, get) -> dict:
        check_flags(attention_bias=get("attention_bias"))
        n_layer = get("num_hidden_layers")
        return dict(
            qkv_bias=get("attention_bias"), o_bias=get("attention_bias"), expert_inner=get("intermediate_size"),
            n_expert=get("num_experts", get("num_local_experts")), top_k=get("num_experts_per_tok"),
            window=get("sliding_window"), layer_types=tuple(get("layer_types", ([SLIDING, FULL] * n_layer)[:n_layer])),
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

    def masks(self, layers: Layers, embedded: Value) -> list[Value]:
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
        hidden, _other = self.mlp(layers, hidden, at)
        return ops.add(residual, hidden)

    def attention(
        self, layers: Layers, hidden: Value, *, at: str, positions: Value, cos: Value, sin: Value, mask: Value
    ) -> tuple[Value, Value]:
        q, k, v = (heads(layers(hidden, at + name), self.head_dim) for name in "qkv")
        cos, sin = views.unsqueeze(cos, 1), views.unsqueeze(sin, 1)
        q, k = _rotated(q, cos, sin), _rotated(k, cos, sin)
        k, v = cached(layers, k, v)
        y, weights = _eager(q, k, v, mask, layers[at + "sinks"], self.attention_dropout)
        return layers(y, at + "o"), weights

    def mlp(self, layers: Layers, x: Value, at: str) -> tuple[Value, Value]:
        B, T, C = x.shape
        x = views.view(x, -1, C)
        _logits, weights, chosen = self.route(layers, x, at + "router")
        x = self.experts(layers, x, chosen, weights, at + "experts.")
        return views.view(x, B, T, C), weights

    def route(self, layers: Layers, x: Value, name: str) -> tuple[Value, Value, Value]:
        logits = ops.linear(x, layers[name], layers[name + ".bias"])
        best, chosen = routing.topk(logits, self.top_k)
        return logits, ops.softmax(best), chosen

    def grouped(self, x: Value, weight: Value, offsets: Value, bias: Value, fallback: bool) -> Value:
        """Its matrices lie as (n_in, n_out)."""
        return routing.add_in_place(routing.grouped_mm(x, weight, offsets, fallback), bias)

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
    return views.cat([first, second])


def _eager(q: Value, k: Value, v: Value, mask: Value, sinks: Value, dropout: float) -> tuple[Value, Value]:
    B, H, T, _ = q.shape
    keys, values = (views.repeat_heads(x, H // k.shape[1]) for x in (k, v))
    weights = ops.scale(ops.matmul(q, views.transpose(keys, 2, 3)))
    weights = ops.add(weights, mask)
    sinks = views.expand(views.view(sinks, 1, -1, 1, 1), B, -1, T, -1)
    combined = views.cat([weights, sinks])
    combined = ops.subtract(combined, ops.largest_of_last(combined))
    shares = ops.softmax(combined)
    scores = views.narrow(shares, 3, T)
    weights = ops.cast(ops.dropout(scores, dropout), v.dtype)
    y = ops.matmul(weights, values)
    y = views.contiguous(views.transpose(y, 1, 2))
    return merged(y), weights
