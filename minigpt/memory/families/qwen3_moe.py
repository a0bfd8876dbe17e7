"""qwen3_moe: qwen3 with a mixture of experts; a window is every layer's or none's (modeling_qwen3_moe)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from minigpt.memory.families.experts import Experts, moe_fields
from minigpt.memory.families.llama import windowed
from minigpt.memory.families.qwen2 import Qwen2
from minigpt.memory.families.qwen3 import Qwen3


@dataclass(frozen=True, kw_only=True)
class Qwen3Moe(Experts, Qwen3):
    masked: ClassVar[tuple[str, ...]] = ()
    defaults: ClassVar[dict] = {
        **Qwen2.defaults, "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 24,
        "num_key_value_heads": 4, "decoder_sparse_step": 1, "moe_intermediate_size": 768, "num_experts_per_tok": 8,
        "num_experts": 128, "norm_topk_prob": False, "use_sliding_window": False, "sliding_window": 4096,
    }  # fmt: skip

    @classmethod
    def read_more(cls, get) -> dict:
        more = super().read_more(get) | moe_fields(get) | dict(window=None, layer_types=())
        more |= windowed(get) if get("use_sliding_window") else {}
        return more | dict(n_expert=get("num_local_experts", more["n_expert"]))  # another name, which wins
