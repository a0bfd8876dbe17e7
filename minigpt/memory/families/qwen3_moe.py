"""qwen3_moe: qwen3 with a mixture of experts; a window is every layer's or none's (modeling_qwen3_moe)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from minigpt.memory.families.experts import Experts, moe_fields
from minigpt.memory.families.llama import windowed
from minigpt.memory.families.qwen3 import Qwen3


@dataclass(frozen=True, kw_only=True)
class Qwen3Moe(Experts, Qwen3):
    masked: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def read_more(cls, config: dict[str, Any]) -> dict[str, Any]:
        bias = config["attention_bias"]
        window = windowed(config) if config["use_sliding_window"] else {}
        return dict(qkv_bias=bias, o_bias=bias, **moe_fields(config), **window)
