"""The closed book of lab 05, and what the meter sees of an answer that runs.

    metered(run, module, inputs)        run() under the meter, with the book closed
    listening(function, tell)           the same autograd.Function, that tells what its backward returns

While an answer runs the course's own checkpoints, losses and lists refuse, and torch's own checkpoint does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.utils.checkpoint
from torch import Tensor, nn

from minigpt import checkpointing, chunked_loss
from minigpt.checks.closing import by_hand, knows
from minigpt.memory import explain, saved
from minigpt.memory.measured import losses
from minigpt.memory.measured.meter import MemoryMeter
from minigpt.memory.predicted.run import run as run_on_shapes

knows(__name__, *(module.__name__ for module in (checkpointing, chunked_loss, explain, saved, losses)))
knows(chunked_loss._Chunked.forward, MemoryMeter.result, run_on_shapes, torch.utils.checkpoint.checkpoint)


class Metered(NamedTuple):
    """What an answer gave, and what the meter read while it ran: bytes, without what was there before."""

    given: Any
    kept: int  # saved for backward, at most at a time; an input that is saved counts, a parameter of ``module`` not
    largest: int  # the largest tensor
    peak: int  # everything that was made, at most at a time


def listening(function: Any, tell: Callable[[tuple], None]) -> Any:
    """A twin of a torch.autograd.Function, of the same name. ``tell`` gets what backward returns, as a tuple."""
    if function.backward is torch.autograd.Function.backward:
        return function  # torch says that there is none

    def backward(ctx, *gradients):
        given = function.backward(ctx, *gradients)
        tell(given if isinstance(given, tuple) else (given,))
        return given

    return type(function)(function.__name__, (function,), {"backward": staticmethod(backward)})


def metered(run: Callable, module: nn.Module | None = None, inputs: Sequence[Tensor] = ()) -> Metered:
    """``run()`` once, watched by the meter, with the book closed. ``inputs`` are there before, as ``module`` is."""
    with MemoryMeter(module, inputs=tuple(inputs)) as meter:
        meter.mark("run")
        given = by_hand(run, building=True, twice=False, untouched=False, none_ok=True)
    reading = meter.result()
    before = sum(change for phase, _, change in reading.events if phase == "before")
    largest = max((change for phase, _, change in reading.events if phase == "run"), default=0)
    return Metered(given, reading.ledger.activations, largest, reading.peak.total - before)
