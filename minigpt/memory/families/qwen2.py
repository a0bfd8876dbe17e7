"""qwen2: llama with biases on q, k and v (transformers' modeling_qwen2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from minigpt.memory.families.llama import Llama
from minigpt.memory.families.rotary import FULL, SLIDING


@dataclass(frozen=True, kw_only=True)
class Qwen2(Llama):
    masked: ClassVar[tuple[str, ...]] = (FULL,)

    @classmethod
    def read_more(cls, config: dict[str, Any]) -> dict[str, Any]:
        return dict(qkv_bias=True, **windows(config))


def windows(config: dict[str, Any]) -> dict[str, Any]:
    """A window for the layers from ``max_window_layers`` on, if the file says that there is one at all."""
    n_layer = config["num_hidden_layers"]
    window = config["sliding_window"] if config["use_sliding_window"] else None
    first = n_layer if window is None else config["max_window_layers"]
    kinds = config["layer_types"] or [SLIDING if i >= first else FULL for i in range(n_layer)]
    return dict(window=window, layer_types=tuple(kinds) if SLIDING in kinds else ())
