"""smollm3: llama whose every fourth layer, by default, knows no positions (transformers' modeling_smollm3).

A layer may have a sliding window too, and by default does so where it has no positions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from minigpt.memory.engine.tape import Value
from minigpt.memory.families.decoder import FULL, SLIDING
from minigpt.memory.families.llama import Llama
from minigpt.values import check_counts, check_flags


@dataclass(frozen=True, kw_only=True)
class SmolLM3(Llama):
    with_positions: tuple[bool, ...] = ()  # for each layer, whether its queries and keys are rotated

    masked: ClassVar[tuple[str, ...]] = (FULL,)
    defaults: ClassVar[dict] = {
        **Llama.defaults, "vocab_size": 128256, "hidden_size": 2048, "num_hidden_layers": 36, "num_attention_heads": 16,
        "num_key_value_heads": 4, "max_position_embeddings": 32768, "tie_word_embeddings": True,
        "use_sliding_window": False, "no_rope_layer_interval": 4,
    }  # fmt: skip

    @classmethod
    def read_more(cls, get) -> dict:
        n_layer, interval, window = get("num_hidden_layers"), get("no_rope_layer_interval"), get("sliding_window")
        check_counts(num_hidden_layers=n_layer, no_rope_layer_interval=interval)
        check_flags(use_sliding_window=get("use_sliding_window"))
        rotated = get("no_rope_layers") or [(i + 1) % interval != 0 for i in range(n_layer)]
        if len(rotated) < n_layer:
            raise ValueError(f"no_rope_layers has {len(rotated)} items; it must have one for each layer")
        slides = get("use_sliding_window") and window is not None
        kinds = get("layer_types") or [SLIDING if slides and not rotated[i] else FULL for i in range(n_layer)]
        return super().read_more(get) | dict(
            with_positions=tuple(map(bool, rotated[:n_layer])), window=window, layer_types=tuple(kinds)
        )

    def turned(self, q: Value, k: Value, cos: Value, sin: Value, at: str) -> tuple[Value, Value]:
        layer = int(at.split(".")[1])
        return super().turned(q, k, cos, sin, at) if self.with_positions[layer] else (q, k)
