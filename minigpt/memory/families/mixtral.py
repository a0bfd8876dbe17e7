"""mixtral: mistral with a mixture of experts; a token's weights are normed, and stay in float32 (modeling_mixtral)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from minigpt.memory.engine import ops, routing, views
from minigpt.memory.engine.adapters import folded_row
from minigpt.memory.engine.layers import Layers
from minigpt.memory.engine.tape import Value
from minigpt.memory.families.architecture import Tensor
from minigpt.memory.families.experts import Experts
from minigpt.memory.families.llama import windowed
from minigpt.values import check_shares


@dataclass(frozen=True, kw_only=True)
class Mixtral(Experts):
    jitter: float = 0.0  # how much noise the experts' and the router's input is multiplied by

    def __post_init__(self) -> None:
        super().__post_init__()
        check_shares(router_jitter_noise=self.jitter)

    @classmethod
    def read_more(cls, config: dict[str, Any]) -> dict[str, Any]:
        kind = config["rope_type"]
        if config["head_dim"] is None and kind in ("dynamic", "yarn", "longrope"):  # it multiplies the None
            raise ValueError(f"rope_type is {kind!r}; for mixtral without head_dim transformers makes none")
        return dict(
            n_expert=config["num_local_experts"], top_k=config["num_experts_per_tok"],
            expert_inner=config["intermediate_size"], normed=True, jitter=config["router_jitter_noise"],
            **windowed(config),
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
