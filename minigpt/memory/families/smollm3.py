"""smollm3: llama whose every fourth layer, by default, knows no positions (transformers' modeling_smollm3).

A layer may have a sliding window too, and by default does so where it has no positions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from minigpt.memory.engine.tape import Value
from minigpt.memory.families.llama import Llama
from minigpt.memory.families.rotary import FULL, SLIDING
from minigpt.values import check_counts


@dataclass(frozen=True, kw_only=True)
class SmolLM3(Llama):
    with_positions: tuple[bool, ...] = ()  # for each layer, whether its queries and keys are rotated

    masked: ClassVar[tuple[str, ...]] = (FULL,)

    @classmethod
    def read_more(cls, config: dict[str, Any]) -> dict[str, Any]:
        n_layer, interval = config["num_hidden_layers"], config["no_rope_layer_interval"]
        window = config["sliding_window"]
        check_counts(no_rope_layer_interval=interval)
        rotated = config["no_rope_layers"] or [(i + 1) % interval != 0 for i in range(n_layer)]
        if len(rotated) < n_layer:
            raise ValueError(f"no_rope_layers has {len(rotated)} items; it must have one for each layer")
        slides = config["use_sliding_window"] and window is not None
        kinds = config["layer_types"] or [SLIDING if slides and not rotated[i] else FULL for i in range(n_layer)]
        return super().read_more(config) | dict(
            with_positions=tuple(map(bool, rotated[:n_layer])), window=window, layer_types=tuple(kinds)
        )

    def turned(self, q: Value, k: Value, cos: Value, sin: Value, at: str) -> tuple[Value, Value]:
        layer = int(at.split(".")[1])
        return super().turned(q, k, cos, sin, at) if self.with_positions[layer] else (q, k)
