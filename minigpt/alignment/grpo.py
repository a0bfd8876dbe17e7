"""Group relative policy optimization (Shao et al. 2024, arXiv 2402.03300): no value model, no reward model in memory.

Each prompt is answered G times, and each answer gets points, say from a program that tests it. Its advantage is how
far it is from its own group, and takes the place of PPO's value function:

    A_i = (points_i - mean of the group) / (deviation of the group + 1e-4)
    ratio = pi(token) / pi_old(token)        loss = -min(ratio A, clip(ratio, 1 - eps, 1 + eps) A)

The deviation is the sample's (divided by G - 1), the 1e-4 and the loss's mean over all tokens (dapo) are trl's (1.15).
Left out: the penalty beta * KL to a reference, which trl leaves out too by default (beta 0.0).
"""

from __future__ import annotations

import torch
from torch import Tensor

from minigpt.values import check_counts

EPSILON = 0.2  # trl's default, on both sides


def advantages(points: Tensor, group: int) -> Tensor:
    """Advantages (N,) of points (N,), in which each ``group`` in a row are the answers to one prompt.

    Raises ValueError for a group of fewer than two, or one that does not divide N.
    """
    check_counts(least=2, group=group)
    if not points.is_floating_point():
        raise ValueError(f"points is {points.dtype}; it must be of a floating-point dtype")
    if points.ndim != 1 or not len(points) or len(points) % group:
        raise ValueError(f"points has shape {tuple(points.shape)}; it must be (N,), N a multiple of group, {group}")
    groups = points.view(-1, group)
    return ((groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-4)).flatten()


def grpo_loss(log_probs: Tensor, old: Tensor, advantage: Tensor, mask: Tensor, epsilon: float = EPSILON) -> Tensor:
    """The mean over all answers' tokens. ``log_probs``, ``old`` and ``mask`` (1 for an answer's token) are (N, T).

    Raises ValueError for a mask without a token.
    """
    if not mask.any():
        raise ValueError("mask is 0 everywhere; a loss is the mean over at least one token")
    ratio = (log_probs - old).exp()  # (N, T)
    clipped = ratio.clamp(1 - epsilon, 1 + epsilon)
    loss = -torch.min(ratio * advantage[:, None], clipped * advantage[:, None])
    return (loss * mask).sum() / mask.sum()
