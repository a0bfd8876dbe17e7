"""What adapters are judged with: values for A and B, the mistakes in their scaling, and peft's layer around a base.

``case`` has a ``rank`` and an ``alpha`` (``layer.Case``).
"""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn

from minigpt.checks.closing import knows
from minigpt.checks.naming import Hints

knows(__name__)


def turned(base: nn.Linear) -> nn.Linear:
    """With the same weight, stored as its transpose is."""
    base.weight = nn.Parameter(base.weight.detach().T.contiguous().T)
    return base


def values(shape: tuple[int, int], seed: int = 0) -> Tensor:
    """Values for A or B that are not zero."""
    draw = torch.Generator().manual_seed(seed + shape[0])
    return torch.randn(shape, generator=draw) / math.sqrt(shape[1])


def fill(made, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Fills a layer's A and B with such values; returns copies of them."""
    with torch.no_grad():
        for parameter in (made.lora_A, made.lora_B):
            parameter.copy_(values(tuple(parameter.shape), 1000 * seed))
    return made.lora_A.detach().clone(), made.lora_B.detach().clone()


def scales(rank: int, alpha: float) -> Hints:
    """What people multiply B A with instead of alpha / rank."""
    right = alpha / rank
    scales = {
        "no-scale": ("the scaling alpha / rank is forgotten", 1.0),
        "scale-alpha": ("scaled by alpha, not divided by the rank", alpha),
        "scale-product": ("scaled by alpha * rank; it is alpha / rank", alpha * rank),
        "scale-inverse": ("scaled by rank / alpha; it is alpha / rank", rank / alpha),
        "scale-root": ("scaled by alpha / sqrt(rank): that is rsLoRA", alpha / math.sqrt(rank)),
        "scale-twice": ("scaled twice", right * right),
        "scale-no-alpha": ("scaled by 1 / rank: alpha is forgotten", 1 / rank),
        "scale-whole": ("scaled by alpha // rank, which loses what is behind the point", float(alpha // rank)),
    }
    if scales["scale-whole"][1] == 1:  # as without any scaling
        del scales["scale-whole"]
    others = {id: (sentence, scale) for id, (sentence, scale) in scales.items() if not math.isclose(scale, right)}
    return {id: hint for id, hint in others.items() if hint[1]}  # with zero nothing is left to see


def peft_layer(base: nn.Linear, case: Any, A: Tensor, B: Tensor) -> Any:
    """peft's LoRA layer around a copy of ``base``, with these A and B."""
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=case.rank, lora_alpha=case.alpha, target_modules=["0"])
    made: Any = get_peft_model(nn.Sequential(copy.deepcopy(base)), config).base_model.get_submodule("model.0")
    with torch.no_grad():
        made.lora_A["default"].weight.copy_(A)
        made.lora_B["default"].weight.copy_(B)
    return made
