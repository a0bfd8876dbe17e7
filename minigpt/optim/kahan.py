"""AdamW in 16 bits that forgets nothing: what rounding takes away from each weight is kept beside it.

    lost = lost - lr * (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)
    new = w + lost        lost = lost + (w - new)        w = new

Sources: Kahan 1965; in an optimizer, Zamirai et al. 2020, "Revisiting BFloat16 Training", arXiv 2010.06192.

Left out: weight decay.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from minigpt.optim.one_by_one import OneByOne


class KahanAdamW(OneByOne):
    """AdamW in the weights' own dtype, with what rounding took away from each weight kept beside it.

    ``state[p]`` holds tensors of p's shape and dtype: "exp_avg", "exp_avg_sq" and "lost". So bfloat16 weights cost 10
    bytes a parameter, with their gradients. The gradient's tensor serves as the copy of w, so a step leaves it changed.
    Raises ValueError for hyperparameters out of range.
    """

    def __init__(
        self, params: Iterable, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-6
    ) -> None:
        super().__init__(params, lr=lr, betas=betas, eps=eps)

    def _update(self, p: Tensor, grad: Tensor, state: dict, group: dict) -> None:
        if not state:
            state.update(step=0, **{name: torch.zeros_like(p) for name in ("exp_avg", "exp_avg_sq", "lost")})
        lr, (b1, b2) = group["lr"], group["betas"]
        state["step"] += 1
        t, m, v, lost = state["step"], state["exp_avg"], state["exp_avg_sq"], state["lost"]
        m.lerp_(grad, 1 - b1)
        v.mul_(b2).addcmul_(grad, grad, value=1 - b2)
        spread = v.sqrt().div_(math.sqrt(1 - b2**t)).add_(group["eps"])
        lost.addcdiv_(m, spread, value=-lr / (1 - b1**t))
        before = grad.copy_(p)
        p.add_(lost)
        lost.add_(before.sub_(p))
