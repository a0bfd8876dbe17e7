"""mixtral: mistral with a mixture of experts; a token's weights are normed, and stay in float32 (modeling_mixtral)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from minigpt.memory.engine import ops, routing, views
from minigpt.memory.engine.adapters import folded_row
from minigpt.memory.engine.layers import Layers
from minigpt.memory.engine.tape import Value
from minigpt.memory.families.architecture import Tensor
from minigpt.memory.families.experts import Experts
from minigpt.memory.families.llama import Llama, windowed
from minigpt.values import check_shares


@dataclass(frozen=True, kw_only=True)
class Mixtral(Experts):
    jitter: float = 0.0  # how much noise the experts' and the router's input is multiplied by

    defaults: ClassVar[dict] = {
        **Llama.defaults, "intermediate_size": 14336, "num_key_value_heads": 8, "max_position_embeddings": 131072,
        "num_experts_per_tok": 2, "num_local_experts": 8, "router_jitter_noise": 0.0,
    }  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        check_shares(router_jitter_noise=self.jitter)

    @classmethod
    def read_more(cls, get) -> dict:
        return dict(
            n_expert=get("num_experts", get("num_local_experts")), top_k=get("num_experts_per_tok"),
            expert_inner=get("intermediate_size"), normed=True, jitter=get("router_jitter_noise"), **windowed(get),
        )  # fmt: skip

    def expert_tensors(self) -> list[Tensor]:
        return [self.router()] + self.stacks()

    def mixture(self, layers: Layers, x: Value, at: str) -> Value:
        if self.jitter:
            x = ops.multiply(x, ops.like(x), in_place=True)
        return super().mixture(layers, x, at)

    def route(self, layers: Layers, x: Value, name: str) -> tuple[Value, Value, Value]:
        weight = folded_row(layers, name)
        x = views.view(x, -1, self.n_embd)
        logits = ops.linear(x, weight())
        shares = ops.softmax(ops.cast(logits, "float32"))
        best, chosen = routing.topk(shares, self.top_k)
        best = routing.divide_in_place(best, routing.sum_of(best, -1, keep=True))
        return logits, best, chosen
