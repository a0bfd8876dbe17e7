"""qwen2_moe: qwen2 with a mixture of experts, and one expert beside it that all tokens share (modeling_qwen2_moe).

peft's "all-linear" is here what it says: the shared expert and its gate get adapters, the other experts none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from minigpt.memory.engine import ops, views
from minigpt.memory.engine.layers import Layers
from minigpt.memory.engine.tape import Value
from minigpt.memory.families.architecture import Tensor, linear
from minigpt.memory.families.experts import Experts, moe_fields
from minigpt.memory.families.llama import Llama
from minigpt.memory.families.rotary import FULL, SLIDING
from minigpt.values import check_counts


@dataclass(frozen=True, kw_only=True)
class Qwen2Moe(Experts):
    shared_inner: int  # inner width of the shared expert

    masked: ClassVar[tuple[str, ...]] = (FULL, SLIDING)
    adapts_experts: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(shared_inner=self.shared_inner)

    @classmethod
    def read_more(cls, config: dict[str, Any]) -> dict[str, Any]:
        window = config["sliding_window"] if config["use_sliding_window"] else 0  # for which there is a mask, too
        first = 0 if window == 0 else config["max_window_layers"]
        kinds = [SLIDING if i % 2 == 0 and i < first else FULL for i in range(config["num_hidden_layers"])]
        own = dict(qkv_bias=config["qkv_bias"], shared_inner=config["shared_expert_intermediate_size"])
        return own | dict(window=window, layer_types=tuple(config["layer_types"] or kinds)) | moe_fields(config)

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
