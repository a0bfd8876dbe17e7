"""Gradients that a student's ``accumulate(model, tokens, targets, rows)`` adds up, and what that keeps.

    added(accumulate, model, tokens, targets, rows, filled)      loss, .grad, and what else is there afterwards
    kept(accumulate, model, tokens, targets, rows)               bytes saved for backward, at most at a time

The model is the judge's own, a copy.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from minigpt.checks.closing import by_hand
from minigpt.checks.probes import probe
from minigpt.checks.probes.watching import Watch


@probe
def added(
    accumulate: Callable, model: nn.Module, tokens: Tensor, targets: Tensor, rows: int, filled: float | None = None
) -> dict:
    """``filled``: what every .grad holds before; None: there is none."""
    if filled is not None:
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, filled)
    loss = by_hand(accumulate, model, tokens, targets, rows, building=True, twice=False, untouched=False, none_ok=True)
    named = dict(model.named_parameters())
    return {
        "loss": loss, "tokens": tokens, "targets": targets,
        "weights": {name: parameter.detach() for name, parameter in named.items()},
        "gradients": {name: parameter.grad for name, parameter in named.items() if parameter.grad is not None},
        "frozen": [name for name, parameter in named.items() if not parameter.requires_grad],
        "training": model.training,
    }  # fmt: skip


@probe
def kept(accumulate: Callable, model: nn.Module, tokens: Tensor, targets: Tensor, rows: int) -> int:
    with Watch(model.parameters(), (tokens, targets)) as watch:
        by_hand(accumulate, model, tokens, targets, rows, building=True, twice=False, untouched=False, none_ok=True)
    return watch.kept
