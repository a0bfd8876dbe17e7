"""Adam, as a formula: a running mean of the gradient, divided by the root of a running mean of its square.

    m = b1 m + (1 - b1) g              where the gradient has pointed lately: noise of single batches averages out
    v = b2 v + (1 - b2) g^2            how large it has been: elements with small gradients are moved as far as others
    direction = (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)
    w = w (1 - lr * decay) - lr * direction

m and v begin at zero, so early on they are too small by the factors 1 - b1^t and 1 - b2^t, which are divided out; t is
1 in the first step. There the direction is g / |g|: every element moves by lr. Later it is near lr where gradients
agree and near 0 where their signs alternate. So a step hardly depends on the gradient's scale, and both m and v are
needed for each parameter, from step to step: they are Adam's memory.

Sources: Kingma and Ba 2014, arXiv 1412.6980; the decay that does not pass through m and v (AdamW) is Loshchilov and
Hutter 2017, arXiv 1711.05101. The numbers are torch.optim.AdamW's.

Left out: amsgrad, and a class for these two functions: torch has it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from torch import Tensor

from minigpt.optim.one_by_one import check_options
from minigpt.values import check_counts


class Adam(NamedTuple):
    """What one step leaves: three tensors of one shape."""

    weight: Tensor
    m: Tensor
    v: Tensor


def adam_direction(
    grad: Tensor, m: Tensor, v: Tensor, t: int, *, betas: tuple[float, float], eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """(direction, new m, new v) of step ``t``, 1 in the first; all have the shape of ``grad``. Nothing is changed."""
    b1, b2 = betas
    m = b1 * m + (1 - b1) * grad
    v = b2 * v + (1 - b2) * grad * grad
    direction = m / (1 - b1**t) / (v.sqrt() / math.sqrt(1 - b2**t) + eps)
    return direction, m, v


def adam_step(
    weight: Tensor, grad: Tensor, m: Tensor, v: Tensor, t: int, *, lr: float = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 0.0,
) -> Adam:  # fmt: skip
    """``weight``, ``m`` and ``v`` after step ``t``, as new tensors; all are of one shape.

    ``m`` and ``v`` are zeros before the first step, in which ``t`` is 1. Raises ValueError for another ``t``, for
    shapes that differ, and for hyperparameters out of their range (``check_options``).
    """
    check_counts(t=t)
    check_options(dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay))
    for name, tensor in dict(grad=grad, m=m, v=v).items():
        if tensor.shape != weight.shape:
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}; it must be the weight's, {tuple(weight.shape)}")
    direction, m, v = adam_direction(grad, m, v, t, betas=betas, eps=eps)
    return Adam(weight * (1 - lr * weight_decay) - lr * direction, m, v)
