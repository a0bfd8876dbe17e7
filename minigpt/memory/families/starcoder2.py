"""starcoder2: llama's attention with LayerNorm, biases and a plain MLP (transformers' modeling_starcoder2).

The MLP's matrices are named up and down here, c_fc and c_proj there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from minigpt.memory.engine import ops
from minigpt.memory.engine.layers import Layers
from minigpt.memory.engine.tape import Value
from minigpt.memory.families.architecture import Tensor, linear, norm
from minigpt.memory.families.decoder import Decoder, layer_norm
from minigpt.memory.families.llama import Llama, windowed
from minigpt.values import check_shares

DROPOUTS = ("residual_dropout", "embedding_dropout")


@dataclass(frozen=True, kw_only=True)
class Starcoder2(Llama):
    residual_dropout: float = 0.0
    embedding_dropout: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_shares(**{name: getattr(self, name) for name in DROPOUTS})

    @classmethod
    def read_more(cls, config: dict[str, Any]) -> dict[str, Any]:
        biases = dict.fromkeys(("qkv_bias", "o_bias", "mlp_bias"), config["use_bias"])
        return dict(**biases, **windowed(config), **{name: config[name] for name in DROPOUTS})

    # ------------------------------------------------------------ tensors

    def outer_tensors(self) -> tuple[list[Tensor], list[Tensor]]:
        return super().outer_tensors()[0], norm("norm", self.n_embd, bias=True)

    def block_tensors(self, layer: int = 0) -> tuple[Tensor, ...]:
        norms = norm("attn_norm", self.n_embd, bias=True) + norm("mlp_norm", self.n_embd, bias=True)
        return tuple(self.attention_tensors() + self.mlp_tensors(layer) + norms)

    def mlp_tensors(self, layer: int) -> list[Tensor]:
        C, inner = self.n_embd, self.n_inner
        return linear("up", inner, C, self.mlp_bias) + linear("down", C, inner, self.mlp_bias)

    # ------------------------------------------------------------ forward

    def first(self, embedded: Value) -> Value:
        return ops.dropout(embedded, self.embedding_dropout)

    def norm(self, layers: Layers, x: Value, name: str) -> Value:
        return layer_norm(layers, x, name)

    def attention(self, layers: Layers, hidden: Value, *, at: str, **shared) -> tuple[Value, Value | None]:
        y, weights = super().attention(layers, hidden, at=at, **shared)
        return ops.dropout(y, self.residual_dropout), weights

    def mlp(self, layers: Layers, x: Value, at: str) -> Value:
        return ops.dropout(Decoder.mlp(self, layers, x, at), self.residual_dropout)
