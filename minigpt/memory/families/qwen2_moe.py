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
from minigpt.memory.families.decoder import causal_mask
from minigpt.memory.families.experts import Experts, moe_fields
from minigpt.memory.families.llama import Llama
from minigpt.memory.families.rotary import FULL, SLIDING
from minigpt.values import check_counts


@dataclass(frozen=True, kw_only=True)
class Qwen2Moe(Experts):
    shared_inner: int  # inner width of the shared expert

    adapts_experts: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(shared_inner=self.shared_inner)

    @classmethod
    def read_more(cls, config: dict[str, Any]) -> dict[str, Any]:
        if SLIDING in (config["layer_types"] or ()):
            raise ValueError(f"layer_types has {SLIDING!r}; allowed: {FULL}")
        own = dict(qkv_bias=config["qkv_bias"], shared_inner=config["shared_expert_intermediate_size"])
        return own | moe_fields(config)

    def expert_tensors(self) -> list[Tensor]:
        C, inner = self.n_embd, self.shared_inner
        shared = linear("gate", inner, C) + linear("up", inner, C) + linear("down", C, inner)
        return [self.router()] + self.stacks() + shared + [Tensor("shared_gate", (1, C), "gate")]

    def adapter_rank(self, tensor: Tensor, plan, targets: set[str]) -> int:
        if tensor.kind == "gate":
            return plan.rank if plan.method != "full" and plan.targets == "all-linear" else 0
        return super().adapter_rank(tensor, plan, targets)

    def masks(self, layers: Layers, embedded: Value) -> list[Value | None]:
        """The model makes a sliding window's mask whether a block has one or not."""
        T, plan = embedded.shape[1], layers.plan
        seen_once = plan.attention == "sdpa" and plan.sequences == "plain"  # and expanded to the batch
        unused = layers.tape.new((1, 1, T, T), "bool") if seen_once else causal_mask(layers, embedded)
        return [*super().masks(layers, embedded), unused]

    def mixture(self, layers: Layers, x: Value, at: str) -> Value:
        B, T, C = x.shape
        flat = views.view(x, -1, C)
        shared = Llama.mlp(self, layers, flat, at)
        _logits, weights, chosen = self.route(layers, flat, at + "router")
        out = self.experts(layers, flat, chosen, weights, at + "experts.")
        shared = ops.multiply(ops.sigmoid(layers(flat, at + "shared_gate")), shared)
        out = ops.add(out, shared)
        return views.view(out, B, T, C)
