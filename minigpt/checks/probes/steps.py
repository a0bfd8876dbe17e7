"""A training step of a student's, taken several times, and what is there after each.

taken(step, W, gradients, options)      ``step(W, G, state, **options)`` for each G, with one ``state``
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from minigpt.checks.closing import by_hand
from minigpt.checks.probes import probe, tried
from minigpt.checks.verdict import Wrong


@probe
def taken(step: Callable, W: Tensor, gradients: list[Tensor], options: dict) -> list:
    """For each step W, G, ``state`` and what was returned; where a step fails, its Wrong is the last."""
    state: dict = {}
    told: list = []
    for i, G in enumerate(gradients):
        with torch.no_grad():
            given = tried(by_hand, step, W, G, state, twice=False, untouched=False, none_ok=True, **options)
        if isinstance(given, Wrong):
            return [*told, given]
        copies = {name: value.clone() if type(value) is Tensor else value for name, value in state.items()}
        last = i == len(gradients) - 1  # with the storages that it keeps alive
        told.append({"W": W.clone(), "G": G, "state": state if last else copies, "given": given})
    return told
