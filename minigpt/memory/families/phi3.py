"""phi3: llama with q, k and v in one matrix, gate and up in another, part of a head rotated (modeling_phi3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from minigpt.memory.engine import ops, views
from minigpt.memory.engine.layers import Layers
from minigpt.memory.engine.tape import Value
from minigpt.memory.families.activations import ACTIVATIONS
from minigpt.memory.families.architecture import Tensor, linear
from minigpt.memory.families.decoder import attend, cached, heads
from minigpt.memory.families.llama import Llama, windowed
from minigpt.memory.families.rotary import joined, parted, rotated
from minigpt.values import check_counts, check_shares


@dataclass(frozen=True, kw_only=True)
class Phi3(Llama):
    rotary_factor: float = 1.0
    longrope: int | None = None  # the longest sequence with the frequencies of the beginning
    resid_pdrop: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_shares(partial_rotary_factor=self.rotary_factor, resid_pdrop=self.resid_pdrop)
        if self.longrope is not None:
            check_counts(original_max_position_embeddings=self.longrope)

    @classmethod
    def read_more(cls, config: dict[str, Any]) -> dict[str, Any]:
        longrope = config["rope_type"] != "default"
        return dict(
            rotary_factor=config["partial_rotary_factor"], resid_pdrop=config["resid_pdrop"],
            longrope=config["original_max_position_embeddings"] if longrope else None, **windowed(config),
        )  # fmt: skip

    @property
    def rotary_dim(self) -> int:
        return -(-int(self.head_dim * self.rotary_factor) // 2) * 2

    def buffers(self) -> list[int]:
        """longrope's two vectors of frequencies are one."""
        return super().buffers()[: 1 if self.longrope else 2]

    def embed(self, layers: Layers, tokens: Value) -> Value:
        """longrope makes a second vector of frequencies when the sequence asks for it, and keeps it."""
        if self.longrope and tokens.shape[1] > self.longrope:
            layers.add("frequencies", (self.rotary_dim // 2,), "float32", trained=False)
        return super().embed(layers, tokens)

    # ------------------------------------------------------------ tensors

    def attention_tensors(self) -> list[Tensor]:
        C, q, kv = self.n_embd, self.n_head * self.head_dim, self.n_kv_head * self.head_dim
        return linear("o", C, q) + linear("qkv", q + 2 * kv, C)

    def mlp_tensors(self, layer: int) -> list[Tensor]:
        C, inner = self.n_embd, self.n_inner
        return linear("gate_up", 2 * inner, C) + linear("down", C, inner)

    # ------------------------------------------------------------ forward

    def added(self, residual: Value, hidden: Value) -> Value:
        return ops.add(residual, ops.dropout(hidden, self.resid_pdrop))

    def attention(
        self, layers: Layers, hidden: Value, *, at: str, positions: Value, cos: Value, sin: Value, mask: Value | None
    ) -> tuple[Value, Value | None]:
        qkv = layers(hidden, at + "qkv")  # bound until this returns; each slice's gradient is a whole one with zeros
        kv = self.n_kv_head * self.head_dim
        q, k, v = (views.narrow(qkv, 2, width) for width in (self.n_head * self.head_dim, kv, kv))
        q, k, v = (heads(x, self.head_dim) for x in (q, k, v))
        q, k = self.turned(q, k, cos, sin, at)
        k, v = cached(layers, k, v)
        y, weights = attend(layers, q, k, v, mask, self.attention_dropout)
        return layers(y, at + "o"), weights

    def turned(self, q: Value, k: Value, cos: Value, sin: Value, at: str) -> tuple[Value, Value]:
        """apply_rotary_pos_emb: each head anew, its first part rotated, even where that is all of it."""
        cos, sin = views.unsqueeze(cos, 1), views.unsqueeze(sin, 1)
        q_part, q_rest = parted(q, self.rotary_dim)
        k_part, k_rest = parted(k, self.rotary_dim)
        q = joined(rotated(q_part, cos, sin), q_rest)
        k = joined(rotated(k_part, cos, sin), k_rest)
        return q, k

    def mlp(self, layers: Layers, x: Value, at: str) -> Value:
        up = layers(x, at + "gate_up")
        gate, up = views.split(up, [self.n_inner] * 2)  # gate keeps both alive until this returns
        up = ops.multiply(up, ACTIVATIONS[self.activation](gate))
        return layers(up, at + "down")
