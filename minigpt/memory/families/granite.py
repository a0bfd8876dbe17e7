"""granite: llama with four multipliers, of embeddings, logits, attention and what each half adds (modeling_granite).

The attention's takes the place of llama's own scale; each of the others is a tensor more, also where it is 1.
"""

from __future__ import annotations

from dataclasses import dataclass

from minigpt.memory.engine import ops
from minigpt.memory.engine.layers import Layers
from minigpt.memory.engine.tape import Value
from minigpt.memory.families.decoder import require_gradient
from minigpt.memory.families.llama import Llama


@dataclass(frozen=True, kw_only=True)
class Granite(Llama):
    def embed(self, layers: Layers, tokens: Value) -> Value:
        embedded = super().embed(layers, tokens)
        require_gradient(layers, embedded)
        return ops.scale(embedded)

    def added(self, residual: Value, hidden: Value) -> Value:
        return ops.add(residual, ops.scale(hidden))

    def logits(self, layers: Layers, hidden: Value) -> Value:
        return ops.scale(super().logits(layers, hidden))
