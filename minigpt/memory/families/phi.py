"""phi: attention and MLP side by side behind one LayerNorm, biases everywhere, part of a head rotated (modeling_phi).

The attention's last matrix and the MLP's two are named o, up and down here; dense, fc1 and fc2 there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from minigpt.memory.engine import ops
from minigpt.memory.engine.layers import Layers
from minigpt.memory.engine.tape import Value
from minigpt.memory.families.architecture import Tensor, linear, norm
from minigpt.memory.families.decoder import Decoder, attend, cached, layer_norm, require_gradient
from minigpt.memory.families.llama import Llama
from minigpt.memory.families.rotary import joined, parted, rotate
from minigpt.values import check_flags, check_shares


@dataclass(frozen=True, kw_only=True)
class Phi(Llama):
    qk_norm: bool = False
    rotary_factor: float = 0.5
    resid_pdrop: float = 0.0
    embd_pdrop: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_flags(qk_layernorm=self.qk_norm)
        check_shares(resid_pdrop=self.resid_pdrop, embd_pdrop=self.embd_pdrop, partial_rotary_factor=self.rotary_factor)
        if self.rotary_dim < 2 or self.rotary_dim % 2:
            text = f"it rotates {self.rotary_dim} of {self.head_dim}, which must be an even number of at least 2"
            raise ValueError(f"partial_rotary_factor is {self.rotary_factor}; {text}")

    @classmethod
    def read_more(cls, config: dict[str, Any]) -> dict[str, Any]:
        return dict(
            qkv_bias=True, o_bias=True, mlp_bias=True, qk_norm=config["qk_layernorm"],
            rotary_factor=config["partial_rotary_factor"], resid_pdrop=config["resid_pdrop"],
            embd_pdrop=config["embd_pdrop"],
        )  # fmt: skip

    def check(self, plan) -> None:
        super().check(plan)
        if plan.loss in ("fused", "trl"):
            raise ValueError(f"loss is {plan.loss!r}; phi has a bias on its head: allowed: model, shifted, chunked")

    @property
    def rotary_dim(self) -> int:
        return int(self.head_dim * self.rotary_factor)

    # ------------------------------------------------------------ tensors

    def tensors(self) -> tuple[Tensor, ...]:
        return (*super().tensors(), Tensor("head.bias", (self.vocab_size,), "bias"))

    def outer_tensors(self) -> tuple[list[Tensor], list[Tensor]]:
        return super().outer_tensors()[0], norm("norm", self.n_embd, bias=True)

    def block_tensors(self, layer: int = 0) -> tuple[Tensor, ...]:
        return tuple(self.attention_tensors() + self.mlp_tensors(layer) + norm("attn_norm", self.n_embd, bias=True))

    def attention_tensors(self) -> list[Tensor]:
        norms = [norm(name, self.head_dim, bias=True) for name in ("q_norm", "k_norm")] if self.qk_norm else []
        return super().attention_tensors() + sum(norms, [])

    def mlp_tensors(self, layer: int) -> list[Tensor]:
        C, inner = self.n_embd, self.n_inner
        return linear("up", inner, C, bias=True) + linear("down", C, inner, bias=True)

    # ------------------------------------------------------------ forward

    def embed(self, layers: Layers, tokens: Value) -> Value:
        embedded = super().embed(layers, tokens)
        require_gradient(layers, embedded)
        return ops.dropout(embedded, self.embd_pdrop)

    def norm(self, layers: Layers, x: Value, name: str) -> Value:
        return layer_norm(layers, x, name)

    def block(self, layers: Layers, hidden: Value, *, at: str, **shared) -> Value:
        residual = hidden
        hidden = self.norm(layers, hidden, at + "attn_norm")
        attended, _weights = self.attention(layers, hidden, at=at, **shared)
        attended = ops.dropout(attended, self.resid_pdrop)
        fed = ops.dropout(self.mlp(layers, hidden, at), self.resid_pdrop)
        return ops.add(ops.add(attended, fed), residual)

    def attention(
        self, layers: Layers, hidden: Value, *, at: str, positions: Value, cos: Value, sin: Value, mask: Value | None
    ) -> tuple[Value, Value | None]:
        q, k, v = self.projected(layers, hidden, at)
        if self.qk_norm:
            q = self.norm(layers, q, at + "q_norm")
            k = self.norm(layers, k, at + "k_norm")
        q_part, q_rest = parted(q, self.rotary_dim)
        k_part, k_rest = parted(k, self.rotary_dim)
        q_part, k_part = rotate(q_part, k_part, cos, sin)  # these four stay bound until this returns
        q = joined(q_part, q_rest)
        k = joined(k_part, k_rest)
        k, v = cached(layers, k, v)
        y, weights = attend(layers, q, k, v, mask, self.attention_dropout)
        return layers(y, at + "o"), weights

    def mlp(self, layers: Layers, x: Value, at: str) -> Value:
        return Decoder.mlp(self, layers, x, at)
