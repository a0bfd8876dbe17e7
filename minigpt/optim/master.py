"""AdamW for 16-bit weights with a float32 master copy: 12 bytes of state per parameter, or 8 without the copy.

    m = b1 m + (1 - b1) g        v = b2 v + (1 - b2) g^2                     all float32
    w32 = w32 (1 - lr * decay) - lr * (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)
    w = bfloat16(w32)

bfloat16 keeps 8 bits of precision, so an update under 1/512 of a weight always rounds away without the copy, and one
under 1/256 may. The copy w32 keeps them until they add up.

Sources: the master copy is Micikevicius et al. 2018, arXiv 1710.03740; which recipe has which copies stands in
``minigpt.memory.plan.PRECISIONS``.

Left out: amsgrad, sharding of the copy.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from minigpt.memory.plan import PRECISIONS
from minigpt.optim.one_by_one import OneByOne
from minigpt.values import check_choice

MASTER_GRADIENTS = {"bf16-master": "16", "bf16-master-grad32": "32", "bf16-master-grad16+32": "16+32"}


def adamw(parameters: Iterable, precision: str, **options) -> torch.optim.Optimizer:
    """AdamW with the state that the precision asks for: torch's, or the one below. ``options`` go to its constructor.

    "foreach" and "fused", torch's ways to loop over tensors, mean nothing to the one below and are left out there.
    Raises ValueError unless ``precision`` is one of PRECISIONS.
    """
    check_choice(PRECISIONS, precision=precision)
    if not PRECISIONS[precision].float32_update:
        return torch.optim.AdamW(parameters, **options)
    for name in ("foreach", "fused"):
        options.pop(name, None)
    gradients = MASTER_GRADIENTS.get(precision, "16")
    return MasterAdamW(parameters, gradients=gradients, master=PRECISIONS[precision].master > 0, **options)


class MasterAdamW(OneByOne):
    """AdamW in float32 for bfloat16 weights.

    ``state[p]`` holds float32 tensors of p's shape: "exp_avg", "exp_avg_sq", "master" (unless ``master`` is False: then
    the update is computed in float32 from the rounded weight) and, for gradients "16+32", "gradient".

    ``gradients``: "16" leaves ``p.grad`` in the weight's dtype; "32" makes ``p.grad`` float32, so that micro-batches
    are summed in float32; "16+32" keeps ``p.grad`` and a float32 copy of it, made at each step.
    Raises ValueError for any other ``gradients``, or for negative ``lr``, ``eps`` or ``weight_decay``.
    """

    def __init__(
        self,
        params: Iterable,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        gradients: str = "16",
        master: bool = True,
    ) -> None:
        if gradients not in MASTER_GRADIENTS.values():
            raise ValueError(f"gradients is {gradients!r}; allowed: {', '.join(MASTER_GRADIENTS.values())}")
        self.gradients, self.master = gradients, master
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)
        if gradients == "32":
            for p in self.parameters():
                p.grad_dtype = torch.float32

    def _update(self, p: Tensor, grad: Tensor, state: dict, group: dict) -> None:
        if not state:
            self._start(p, state)
        lr, (b1, b2) = group["lr"], group["betas"]
        gradient = state["gradient"].copy_(grad) if self.gradients == "16+32" else grad.float()
        master = state["master"] if self.master else p.float()
        state["step"] += 1
        t, m, v = state["step"], state["exp_avg"], state["exp_avg_sq"]
        master.mul_(1 - lr * group["weight_decay"])
        m.lerp_(gradient, 1 - b1)
        v.mul_(b2).addcmul_(gradient, gradient, value=1 - b2)
        spread = (v.sqrt() / math.sqrt(1 - b2**t)).add_(group["eps"])
        master.addcdiv_(m, spread, value=-lr / (1 - b1**t))
        p.copy_(master)

    def _start(self, p: Tensor, state: dict) -> None:
        state["step"] = 0
        state["exp_avg"] = torch.zeros_like(p, dtype=torch.float32)
        state["exp_avg_sq"] = torch.zeros_like(p, dtype=torch.float32)
        if self.master:
            state["master"] = p.detach().to(torch.float32, copy=True)
        if self.gradients == "16+32":
            state["gradient"] = torch.empty_like(p, dtype=torch.float32)
