"""The models of fitcheck's readings: transformers', but for one thing that its script changes.

A T4 has no fused attention for grouped heads (``minigpt.memory.predicted.fused``), so scripts/measure.py of
Anassbzdd/fitcheck repeats keys and values to every query head before torch sees them.
"""

from __future__ import annotations

from minigpt.memory import Architecture
from minigpt.memory.engine import views
from minigpt.memory.engine.layers import Layers
from minigpt.memory.engine.tape import Value
from minigpt.memory.families.decoder import attend, cached
from minigpt.memory.families.llama import Llama


def model(name: str) -> Architecture:
    """The model of this name, llama's or qwen2's, with heads repeated. Raises ValueError for another family."""
    known = Architecture.of(name)
    if not isinstance(known, Llama):
        raise ValueError(f"model is {name!r}, a {known.family}; allowed: one of llama's kind")
    return type("Repeating", (_Repeating, type(known)), {})(**vars(known))


class _Repeating(Llama):
    def attention(self, layers: Layers, hidden: Value, *, at: str, positions, cos, sin, mask):
        q, k, v = self.projected(layers, hidden, at)
        q, k = self.turned(q, k, cos, sin, at)
        k, v = cached(layers, k, v)
        y, weights = self._attended(layers, q, k, v, mask)
        return layers(y, at + "o"), weights

    def _attended(self, layers: Layers, q: Value, k: Value, v: Value, mask) -> tuple[Value, Value | None]:
        if layers.plan.attention == "sdpa":  # transformers' own names for k and v stay bound
            times = q.shape[1] // k.shape[1]
            return attend(layers, q, views.repeat_heads(k, times), views.repeat_heads(v, times), mask)
        return attend(layers, q, k, v, mask, self.attention_dropout, self.eager)
