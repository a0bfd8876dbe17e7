"""A training step of a student's, taken several times, and what is there after each.

taken(step, W, gradients, options, state)      ``step(W, G, state, **options)`` for each G, with one ``state``
taken_in_turn(step, runs, options)             the same for several (W, gradients), step by step in turn
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from minigpt.checks.closing import by_hand
from minigpt.checks.probes import probe, tried
from minigpt.checks.verdict import Wrong


@probe
def taken(step: Callable, W: Tensor, gradients: list[Tensor], options: dict, state: dict | None = None) -> list:
    """For each step W, G, ``state`` and what was returned; where a step fails, its Wrong is the last."""
    return _steps(step, W, gradients, options, {} if state is None else state)


def _steps(step: Callable, W: Tensor, gradients: list[Tensor], options: dict, state: dict) -> list:
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


@probe
def taken_in_turn(step: Callable, runs: list[tuple[Tensor, list[Tensor]]], options: dict) -> list[list]:
    told: list[list] = [[] for _ in runs]
    states: list[dict] = [{} for _ in runs]
    for i in range(len(runs[0][1])):
        for (W, gradients), state, said in zip(runs, states, told):
            if not said or isinstance(said[-1], dict):
                (one,) = _steps(step, W, [gradients[i]], options, state)
                copies = {name: value.clone() if type(value) is Tensor else value for name, value in state.items()}
                said.append(one if isinstance(one, Wrong) else one | {"state": copies})
    return told
