"""gemma2: gemma with norms around both halves of a block, every other layer sliding, and soft caps (modeling_gemma2).

A cap is c * tanh(x / c): two tensors more. That of attention's scores is in eager attention alone, where there are any.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from minigpt.memory.engine import ops
from minigpt.memory.engine.layers import Layers
from minigpt.memory.engine.tape import Value
from minigpt.memory.families.architecture import Tensor, norm
from minigpt.memory.families.decoder import CAP, eager_attention
from minigpt.memory.families.gemma import Gemma
from minigpt.memory.families.rotary import FULL, SLIDING
from minigpt.values import check_flags


@dataclass(frozen=True, kw_only=True)
class Gemma2(Gemma):
    capped_scores: bool = True
    capped_logits: bool = True

    masked: ClassVar[tuple[str, ...]] = (FULL, SLIDING)
    named_activation: ClassVar[str] = "hidden_activation"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_flags(capped_scores=self.capped_scores, capped_logits=self.capped_logits)

    @classmethod
    def read_more(cls, config: dict[str, Any]) -> dict[str, Any]:
        every = config.get("sliding_window_pattern", 2)  # a field of gemma3 alone
        kinds = [SLIDING if (i + 1) % every else FULL for i in range(config["num_hidden_layers"])]
        return dict(
            window=config["sliding_window"], layer_types=tuple(config["layer_types"] or kinds),
            capped_scores=config["attn_logit_softcapping"] is not None,
            capped_logits=config["final_logit_softcapping"] is not None, **super().read_more(config),
        )  # fmt: skip

    def check(self, plan) -> None:
        super().check(plan)
        if self.capped_logits and plan.loss not in ("model", "shifted"):
            raise ValueError(f"loss is {plan.loss!r}; with final_logit_softcapping: allowed: model, shifted")

    def block_tensors(self, layer: int = 0) -> tuple[Tensor, ...]:
        norms = [norm(name, self.n_embd) for name in ("attn_norm", "attn_out_norm", "mlp_norm", "mlp_out_norm")]
        return tuple(self.attention_tensors() + self.mlp_tensors(layer) + sum(norms, []))

    def block(self, layers: Layers, hidden: Value, *, at: str, **shared) -> Value:
        residual = hidden
        hidden = self.norm(layers, hidden, at + "attn_norm")
        hidden, _weights = self.attention(layers, hidden, at=at, **shared)
        hidden = self.norm(layers, hidden, at + "attn_out_norm")
        hidden = ops.add(residual, hidden)
        residual = hidden
        hidden = self.norm(layers, hidden, at + "mlp_norm")
        hidden = self.mlp(layers, hidden, at)
        hidden = self.norm(layers, hidden, at + "mlp_out_norm")
        return ops.add(residual, hidden)

    def eager(self, q: Value, k: Value, v: Value, mask: Value, dropout: float) -> tuple[Value, Value]:
        return eager_attention(q, k, v, mask, dropout, capped=self.capped_scores)

    def logits(self, layers: Layers, hidden: Value) -> Value:
        logits = super().logits(layers, hidden)
        for step in CAP if self.capped_logits else ():
            logits = step(logits)
        return logits
