"""Adafactor: v of a matrix as one number per row and one per column, and no m.

    R_i = b R_i + (1 - b) mean_j (g_ij^2 + 1e-30)        b = 1 - t^-0.8: the mean of all steps so far at first,
    C_j = b C_j + (1 - b) mean_i (g_ij^2 + 1e-30)        and ever slower to forget
    v_ij = R_i C_j / mean(R)                             the matrix of rank one that has these means
    u = g / sqrt(v)
    w = w (1 - lr * decay) - lr * u / max(1, rms(u))     rms is the root of the mean square

A matrix (m, n) keeps m + n numbers where Adam keeps 2 m n; a vector keeps its whole v. v itself is there for a moment
in each step. Where v is not of rank one, some elements move too far: hence the bound on u.

Source: Shazeer and Stern 2018, arXiv 1804.04235; the numbers are those of transformers' Adafactor with an lr of one's
own (``scale_parameter=False, relative_step=False``), as its Trainer has it.

Left out: m, steps relative to the size of the weights, the paper's schedule for lr. torch.optim.Adafactor has both.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from minigpt.optim.one_by_one import OneByOne

DECAY, LEAST = -0.8, 1e-30


class Adafactor(OneByOne):
    """``state[p]`` holds "step" and, in float32, "rows" (..., m) and "columns" (..., n) of a p (..., m, n), or "v".

    The update is made in float32 for weights of any floating dtype. Raises ValueError for hyperparameters out of range.
    """

    def __init__(self, params: Iterable, lr: float = 1e-3, weight_decay: float = 0.0) -> None:
        super().__init__(params, lr=lr, weight_decay=weight_decay)

    def _update(self, p: Tensor, grad: Tensor, state: dict, group: dict) -> None:
        grad = grad.float()
        if not state:
            state["step"] = 0
            if p.ndim > 1:
                state["rows"] = grad.new_zeros(p.shape[:-1])
                state["columns"] = grad.new_zeros(p.shape[:-2] + p.shape[-1:])
            else:
                state["v"] = torch.zeros_like(grad)
        state["step"] += 1
        forget = state["step"] ** DECAY  # 1 - b
        square = grad * grad + LEAST
        if p.ndim > 1:
            rows = state["rows"].lerp_(square.mean(-1), forget)
            columns = state["columns"].lerp_(square.mean(-2), forget)
            rows = rows / rows.mean(-1, keepdim=True)
            update = grad * (rows.rsqrt()[..., None] * columns.rsqrt()[..., None, :])
        else:
            update = grad * state["v"].lerp_(square, forget).rsqrt()
        update /= update.square().mean().sqrt().clamp(min=1)
        lr = group["lr"]
        p.copy_(p.float() * (1 - lr * group["weight_decay"]) - lr * update)
