"""Lion: the sign of a running mean. It keeps m alone, half of what Adam keeps.

    w = w (1 - lr * decay) - lr * sign(b1 m + (1 - b1) g)
    m = b2 m + (1 - b2) g

Every element moves by lr, whatever its gradient: so lr is three to ten times smaller than Adam's, and decay as many
times larger. Source: Chen et al. 2023, arXiv 2302.06675.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from minigpt.optim.one_by_one import OneByOne


class Lion(OneByOne):
    """``state[p]`` holds "m", of p's shape and dtype. Raises ValueError for hyperparameters out of range."""

    def __init__(
        self, params: Iterable, lr: float = 1e-4, betas: tuple[float, float] = (0.9, 0.99), weight_decay: float = 0.0
    ) -> None:
        super().__init__(params, lr=lr, betas=betas, weight_decay=weight_decay)

    def _update(self, p: Tensor, grad: Tensor, state: dict, group: dict) -> None:
        if not state:
            state["m"] = torch.zeros_like(p)
        lr, (b1, b2), m = group["lr"], group["betas"], state["m"]
        p.mul_(1 - lr * group["weight_decay"])
        p.add_((b1 * m).add_(grad, alpha=1 - b1).sign_(), alpha=-lr)
        m.mul_(b2).add_(grad, alpha=1 - b2)
