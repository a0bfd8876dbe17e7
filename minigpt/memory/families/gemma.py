"""gemma: llama with scaled embeddings, and norms that end in float32 and add one to their weight (modeling_gemma)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from minigpt.memory.engine import ops
from minigpt.memory.engine.layers import Layers
from minigpt.memory.engine.tape import Value
from minigpt.memory.families.llama import Llama
from minigpt.values import check_flags


@dataclass(frozen=True, kw_only=True)
class Gemma(Llama):
    """Also the parent of its successors."""

    defaults: ClassVar[dict] = dict(
        vocab_size=256000, hidden_size=3072, intermediate_size=24576, num_hidden_layers=28, num_attention_heads=16,
        num_key_value_heads=16, head_dim=256, hidden_act="gelu_pytorch_tanh", max_position_embeddings=8192,
        tie_word_embeddings=True,
    )  # fmt: skip

    @classmethod
    def read_more(cls, get) -> dict:
        bias = get("attention_bias", False)
        check_flags(attention_bias=bias)
        return dict(qkv_bias=bias, o_bias=bias)

    def constants(self) -> dict[str, tuple[int, ...]]:
        return {"scale": ()}

    def embed(self, layers: Layers, tokens: Value) -> Value:
        table = layers["embedding"]
        return ops.multiply(ops.embedding(tokens, table), ops.cast(layers["scale"], table.dtype))

    def norm(self, layers: Layers, x: Value, name: str) -> Value:
        output = _normed(ops.cast(x, "float32"))
        output = ops.multiply(output, ops.shift(ops.cast(layers[name], "float32")))
        return ops.cast(output, x.dtype)


def _normed(x: Value) -> Value:
    return ops.multiply(x, ops.rsqrt(ops.shift(ops.mean_of_last(ops.power(x)))))
