"""qwen2_moe: qwen2 with a mixture of experts, and one expert beside it that all tokens share (modeling_qwen2_moe).

peft's "all-linear" is here what it says: the shared expert and its gate get adapters, the other experts none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from minigpt.memory.engine import ops, views
from minigpt.memory.engine.layers import Layers
from minigpt.memory.engine.tape import Value
from minigpt.memory.families.architecture import Tensor, linear
from minigpt.memory.families.decoder import FULL, SLIDING
from minigpt.memory.families.experts import Experts, moe_fields
from minigpt.memory.families.llama import Llama
from minigpt.memory.families.qwen2 import Qwen2
from minigpt.values import check_counts, check_flags


@dataclass(frozen=True, kw_only=True)
class Qwen2Moe(Experts):
    shared_inner: int  # inner width of the shared expert

    masked: ClassVar[tuple[str, ...]] = (FULL, SLIDING)
    adapts_experts: ClassVar[bool] = False
    defaults: ClassVar[dict] = {
        **Qwen2.defaults, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 24,
        "num_attention_heads": 16, "num_key_value_heads": 16, "decoder_sparse_step": 1, "moe_intermediate_size": 1408,
        "shared_expert_intermediate_size": 5632, "num_experts_per_tok": 4, "num_experts": 60, "norm_topk_prob": False,
        "qkv_bias": True, "use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28,
    }  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(shared_inner=self.shared_inner)

    @classmethod
    def read_more(cls, get) -> dict:
        check_flags(qkv_bias=get("qkv_bias"))
        window = get("sliding_window") if get("use_sliding_window") else 0  # for which there is a mask, too
        slides = [i % 2 == 0 and i < get("max_window_layers") and window != 0 for i in range(get("num_hidden_layers"))]
        kinds = get("layer_types", [SLIDING if slide else FULL for slide in slides])
        more = dict(qkv_bias=get("qkv_bias"), shared_inner=get("shared_expert_intermediate_size"))
        return more | dict(window=window, layer_types=tuple(kinds)) | moe_fields(get)

    def check(self, plan) -> None:
        super().check(plan)
        if self.window == 0 and SLIDING in self.layer_types and plan.use_cache:
            raise ValueError("use_cache is True; transformers' cache breaks at a sliding_window of 0")

    def expert_tensors(self) -> list[Tensor]:
        C, inner = self.n_embd, self.shared_inner
        shared = linear("gate", inner, C) + linear("up", inner, C) + linear("down", C, inner)
        return [self.router()] + self.stacks() + shared + [Tensor("shared_gate", (1, C), "gate")]

    def adapter_rank(self, tensor: Tensor, plan, targets: set[str]) -> int:
        if tensor.kind == "gate":
            return plan.rank if plan.method != "full" and "all-linear" in plan.targets.split(",") else 0
        return super().adapter_rank(tensor, plan, targets)

    def mixture(self, layers: Layers, x: Value, at: str) -> Value:
        B, T, C = x.shape
        flat = views.view(x, -1, C)
        shared = Llama.mlp(self, layers, flat, at)
        _logits, weights, chosen = self.route(layers, flat, at + "router")
        out = self.experts(layers, flat, chosen, weights, at + "experts.")
        shared = ops.multiply(ops.sigmoid(layers(flat, at + "shared_gate")), shared)
        out = ops.add(out, shared)
        return views.view(out, B, T, C)
