"""gpt2: learned positions, LayerNorm, q, k and v in one matrix, a plain MLP (transformers' modeling_gpt2)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from minigpt.memory.engine import ops, views
from minigpt.memory.engine.layers import Layers
from minigpt.memory.engine.tape import Value
from minigpt.memory.families.architecture import Tensor, divide, linear, norm
from minigpt.memory.families.decoder import (
    Decoder,
    attend,
    cached,
    causal_mask,
    heads,
    layer_norm,
    merged,
    positions_of,
    require_gradient,
    run_block,
)
from minigpt.values import check_shares

DROPOUTS = ("resid_pdrop", "embd_pdrop", "attn_pdrop")


@dataclass(frozen=True, kw_only=True)
class GPT2(Decoder):
    resid_pdrop: float = 0.0
    embd_pdrop: float = 0.0
    attn_pdrop: float = 0.0

    product: ClassVar = staticmethod(ops.conv1d)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_shares(**{name: getattr(self, name) for name in DROPOUTS})

    @classmethod
    def read(cls, config: dict[str, Any]) -> GPT2:
        C, n_head, inner = config["n_embd"], config["n_head"], config["n_inner"]
        return cls(
            family="gpt2", vocab_size=config["vocab_size"], n_layer=config["n_layer"], n_embd=C, n_head=n_head,
            n_kv_head=n_head, head_dim=divide(n_embd=C, n_head=n_head), n_inner=4 * C if inner is None else inner,
            context=config["n_positions"], tied=config["tie_word_embeddings"],
            activation=config["activation_function"], **{name: config[name] for name in DROPOUTS},
        )  # fmt: skip

    def check(self, plan) -> None:
        if plan.variant == "dora" and plan.lora_dropout:  # peft takes gradients of a transposed copy of each weight
            raise ValueError(f"lora_dropout is {plan.lora_dropout}; with gpt2 and variant 'dora' it must be 0")

    # ------------------------------------------------------------ tensors

    def outer_tensors(self) -> tuple[list[Tensor], list[Tensor]]:
        first, _ = super().outer_tensors()
        first.append(Tensor("positions", (self.context, self.n_embd), "embedding"))
        return first, norm("norm", self.n_embd, bias=True)

    def block_tensors(self, layer: int = 0) -> tuple[Tensor, ...]:
        C, inner = self.n_embd, self.n_inner
        out = norm("attn_norm", C, bias=True) + linear("qkv", 3 * C, C, bias=True) + linear("o", C, C, bias=True)
        out += norm("mlp_norm", C, bias=True)
        return tuple(out + linear("up", inner, C, bias=True) + linear("down", C, inner, bias=True))

    # ------------------------------------------------------------ forward

    def model(self, layers: Layers, tokens: Value) -> Value:
        tape = layers.tape
        embedded = ops.embedding(tokens, layers["embedding"])
        require_gradient(layers, embedded)
        positions = positions_of(layers, tokens)
        position_embeds = ops.embedding(positions, layers["positions"])
        hidden = ops.add(embedded, position_embeds)
        mask = causal_mask(layers, embedded)
        hidden = ops.dropout(hidden, self.embd_pdrop)

        def block(i: int):
            return partial(self.block, layers, at=f"blocks.{i}.", _positions=positions)

        for i in range(self.n_layer):
            inputs = (hidden,) if mask is None else (hidden, mask)
            hidden = run_block(layers, i, block, *inputs)
        tape.block = "norm"
        return views.alias(layer_norm(layers, hidden, "norm"))

    def block(self, layers: Layers, hidden: Value, mask: Value | None = None, *, at: str, _positions: Value) -> Value:
        residual = hidden
        hidden = layer_norm(layers, hidden, at + "attn_norm")
        attended, _weights = self.attention(layers, hidden, mask, at)
        hidden = ops.add(attended, residual)
        residual = hidden
        hidden = layer_norm(layers, hidden, at + "mlp_norm")
        fed = self.mlp(layers, hidden, at)
        return ops.add(residual, fed)

    def attention(self, layers: Layers, hidden: Value, mask: Value | None, at: str) -> tuple[Value, Value | None]:
        q, k, v = views.split(layers(hidden, at + "qkv"), [self.n_embd] * 3)
        q, k, v = (heads(x, self.head_dim) for x in (q, k, v))
        k, v = cached(layers, k, v)
        y, weights = attend(layers, q, k, v, mask, self.attn_pdrop, _eager)
        y = layers(y, at + "o")
        return ops.dropout(y, self.resid_pdrop), weights

    def mlp(self, layers: Layers, x: Value, at: str) -> Value:
        return ops.dropout(super().mlp(layers, x, at), self.resid_pdrop)


def _eager(q: Value, k: Value, v: Value, mask: Value, dropout: float) -> tuple[Value, Value]:
    """gpt2's eager attention: the softmax in the scores' own precision."""
    weights = ops.scale(ops.matmul(q, views.transpose(k, 2, 3)))
    weights = ops.add(weights, mask)
    weights = ops.softmax(weights)
    weights = ops.cast(weights, v.dtype)
    weights = ops.dropout(weights, dropout)
    y = ops.matmul(weights, v)
    return merged(views.transpose(y, 1, 2)), weights
