"""qwen2: llama with biases on q, k and v (transformers' modeling_qwen2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from minigpt.memory.families.decoder import FULL, SLIDING
from minigpt.memory.families.llama import Llama


@dataclass(frozen=True, kw_only=True)
class Qwen2(Llama):
    masked: ClassVar[tuple[str, ...]] = (FULL,)
    defaults: ClassVar[dict] = {
        **Llama.defaults, "vocab_size": 151936, "intermediate_size": 22016, "num_key_value_heads": 32,
        "max_position_embeddings": 32768,
    }  # fmt: skip

    @classmethod
    def read_more(cls, get) -> dict:
        return dict(qkv_bias=True, **windows(get))


def windows(get) -> dict:
    """A window for the layers from ``max_window_layers`` on, if the file says that there is one at all."""
    window = get("sliding_window", 4096) if get("use_sliding_window", False) else None
    first = get("num_hidden_layers") if window is None else get("max_window_layers", 28)
    kinds = get("layer_types") or [SLIDING if i >= first else FULL for i in range(get("num_hidden_layers"))]
    return dict(window=window, layer_types=tuple(kinds) if SLIDING in kinds else ())
