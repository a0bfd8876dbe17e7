"""gemma: llama with scaled embeddings, and norms that end in float32 and add one to their weight (modeling_gemma)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from minigpt.memory.engine import ops
from minigpt.memory.engine.layers import Layers
from minigpt.memory.engine.tape import Value
from minigpt.memory.families.llama import Llama


@dataclass(frozen=True, kw_only=True)
class Gemma(Llama):
    """Also the parent of its successors."""

    @classmethod
    def read_more(cls, config: dict[str, Any]) -> dict[str, Any]:
        return dict(qkv_bias=config["attention_bias"], o_bias=config["attention_bias"])

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
