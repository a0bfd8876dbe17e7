"""mistral: llama without biases, with a sliding window (transformers' modeling_mistral)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from minigpt.memory.families.llama import Llama, windowed


@dataclass(frozen=True, kw_only=True)
class Mistral(Llama):
    @classmethod
    def read_more(cls, config: dict[str, Any]) -> dict[str, Any]:
        return windowed(config)
