"""gpt_neox: Pythia's; attention and MLP side by side, q, k and v in one matrix, a part of each head rotated.

Every head's q, k and v lie together, so that its values keep all three alive. Source: transformers' modeling_gpt_neox.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from minigpt.memory.engine import ops, views
from minigpt.memory.engine.layers import Layers
from minigpt.memory.engine.tape import Value
from minigpt.memory.families.architecture import Tensor, linear, norm
from minigpt.memory.families.decoder import attend, cached, heads, layer_norm
from minigpt.memory.families.rotary import Rotary, joined, parted, rotated
from minigpt.values import check_flags, check_shares


@dataclass(frozen=True, kw_only=True)
class GPTNeoX(Rotary):
    attention_bias: bool = True
    parallel: bool = True  # attention and MLP both read the block's input
    rotary_factor: float = 0.25
    hidden_dropout: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_flags(attention_bias=self.attention_bias, use_parallel_residual=self.parallel)
        check_shares(hidden_dropout=self.hidden_dropout, rotary_pct=self.rotary_factor)

    @classmethod
    def read_more(cls, config: dict[str, Any]) -> dict[str, Any]:
        return dict(
            n_inner=config["intermediate_size"], attention_bias=config["attention_bias"],
            parallel=config["use_parallel_residual"], rotary_factor=config["rotary_pct"],
            hidden_dropout=config["hidden_dropout"],
        )  # fmt: skip

    @property
    def rotary_dim(self) -> int:
        return -(-int(self.head_dim * self.rotary_factor) // 2) * 2

    # ------------------------------------------------------------ tensors

    def outer_tensors(self) -> tuple[list[Tensor], list[Tensor]]:
        return super().outer_tensors()[0], norm("norm", self.n_embd, bias=True)

    def block_tensors(self, layer: int = 0) -> tuple[Tensor, ...]:
        C, inner, bias = self.n_embd, self.n_inner, self.attention_bias
        norms = norm("attn_norm", C, bias=True) + norm("mlp_norm", C, bias=True)
        attention = linear("qkv", 3 * C, C, bias) + linear("o", C, C, bias)
        return tuple(norms + attention + linear("up", inner, C, True) + linear("down", C, inner, True))

    # ------------------------------------------------------------ forward

    def first(self, embedded: Value) -> Value:
        return ops.dropout(embedded, self.hidden_dropout)

    def norm(self, layers: Layers, x: Value, name: str) -> Value:
        return layer_norm(layers, x, name)

    def block(self, layers: Layers, hidden: Value, *, at: str, **shared) -> Value:
        attended, _weights = self.attention(layers, self.norm(layers, hidden, at + "attn_norm"), at=at, **shared)
        attended = ops.dropout(attended, self.hidden_dropout)
        if self.parallel:
            fed = self.mlp(layers, self.norm(layers, hidden, at + "mlp_norm"), at)
            fed = ops.dropout(fed, self.hidden_dropout)
            return ops.add(ops.add(fed, attended), hidden)
        attended = ops.add(attended, hidden)
        fed = self.mlp(layers, self.norm(layers, attended, at + "mlp_norm"), at)
        fed = ops.dropout(fed, self.hidden_dropout)
        return ops.add(fed, attended)

    def attention(
        self, layers: Layers, hidden: Value, *, at: str, positions: Value, cos: Value, sin: Value, mask: Value | None
    ) -> tuple[Value, Value | None]:
        qkv = heads(layers(hidden, at + "qkv"), 3 * self.head_dim)
        q, k, v = views.split(qkv, [self.head_dim] * 3)
        q, k = self.turned(q, k, cos, sin)
        k, v = cached(layers, k, v)
        y, weights = attend(layers, q, k, v, mask, self.attention_dropout)
        return layers(y, at + "o"), weights

    def turned(self, q: Value, k: Value, cos: Value, sin: Value) -> tuple[Value, Value]:
        """apply_rotary_pos_emb: each head anew, its first part rotated."""
        cos, sin = views.unsqueeze(cos, 1), views.unsqueeze(sin, 1)
        q_part, q_rest = parted(q, self.rotary_dim)
        k_part, k_rest = parted(k, self.rotary_dim)
        q_turned = rotated(q_part, cos, sin)
        k_turned = rotated(k_part, cos, sin)
        q_turned = joined(q_turned, q_rest)
        k_turned = joined(k_turned, k_rest)
        return q_turned, k_turned
