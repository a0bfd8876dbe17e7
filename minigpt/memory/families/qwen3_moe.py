"""qwen3_moe: qwen3 with a mixture of experts (transformers' modeling_qwen3_moe)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from minigpt.memory.families.experts import Experts, moe_fields
from minigpt.memory.families.qwen3 import Qwen3


@dataclass(frozen=True, kw_only=True)
class Qwen3Moe(Experts, Qwen3):
    @classmethod
    def read_more(cls, config: dict[str, Any]) -> dict[str, Any]:
        bias = config["attention_bias"]
        return dict(qkv_bias=bias, o_bias=bias, **moe_fields(config))
