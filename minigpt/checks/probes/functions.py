"""Functions of autograd's that a student wrote: a checkpoint, and a loss in chunks.

    checkpointed(Checkpoint, blocks, x, pull)           output and gradients of checkpointed blocks, one after the other
    checkpoint_keeps(Checkpoint, block, x, pull)        bytes that are there after forward, and after backward
    chunked(Chunked, hidden, weight, targets, chunk)    loss, and the gradients of 3 times it
    chunked_makes(Chunked, ...)                         bytes that are made, and wait for backward

``function`` says whether what is asked is a ``torch.autograd.Function`` at all; nothing else is in a record where not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from minigpt.checks.closing import by_hand
from minigpt.checks.probes import probe
from minigpt.checks.probes.watching import Watch, python_bytes


class Plain(nn.Module):
    """A small block with a residual stream. In and out: (..., width)."""

    def __init__(self, width: int, dropout: float = 0.0, frozen: bool = False) -> None:
        super().__init__()
        self.norm, self.drop = nn.LayerNorm(width, bias=False), nn.Dropout(dropout)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width, bias=False)
        self.up.weight.requires_grad_(not frozen)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.drop(nn.functional.gelu(self.up(self.norm(x)))))


def named(blocks: Sequence[nn.Module]) -> dict[str, nn.Parameter]:
    """Their parameters; where there are several blocks, with their numbers."""
    return dict((blocks[0] if len(blocks) == 1 else nn.ModuleList(blocks)).named_parameters())


def is_function(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, torch.autograd.Function)


@probe
def checkpointed(checkpoint: Any, blocks: list[nn.Module], x: Tensor, pull: Tensor) -> dict:
    """``drawn``: random numbers after backward; ``returned``: what the last backward returned."""
    if not is_function(checkpoint):
        return {"function": False}
    returned: list[tuple] = []
    twin = _listening(checkpoint, returned)
    before = x.detach().clone()

    def run():
        torch.manual_seed(1)
        y = x
        for block in blocks:
            y = twin.apply(block, y, *block.parameters())
            torch.rand(5)
        y.backward(pull)
        return y.detach(), torch.rand(5)

    y, drawn = _named(run, checkpoint)
    parameters = named(blocks)
    return {
        "function": True, "y": y, "drawn": drawn, "x": x.grad, "kept_x": bool(torch.equal(x.detach(), before)),
        "gradients": {name: parameter.grad for name, parameter in parameters.items()},
        "weights": {name: parameter.detach() for name, parameter in parameters.items()},
        "frozen": [name for name, parameter in parameters.items() if not parameter.requires_grad],
        "training": all(module.training for block in blocks for module in block.modules()),
        "returned": [bool(isinstance(each, Tensor)) for each in returned[-1]] if returned else [],
    }  # fmt: skip


def _listening(function: Any, told: list[tuple]) -> Any:
    """A twin of a torch.autograd.Function, of the same name. ``told`` gets what backward returns, as a tuple."""
    if function.backward is torch.autograd.Function.backward:
        return function  # torch says that there is none

    def backward(ctx, *gradients):
        given = function.backward(ctx, *gradients)
        told.append(given if isinstance(given, tuple) else (given,))
        return given

    return type(function)(function.__name__, (function,), {"backward": staticmethod(backward)})


@probe
def checkpoint_keeps(checkpoint: Any, block: nn.Module, x: Tensor, pull: Tensor) -> dict:
    """``beside``: what is there after forward and is neither x nor the output; ``aside``: in numpy and in lists."""
    if not is_function(checkpoint):
        return {"function": False}

    def run():
        return checkpoint.apply(block, x, *block.parameters())

    _, aside = python_bytes(lambda: _named(run, checkpoint))
    with Watch(block.parameters(), (x, pull)) as watch:
        made = [_named(run, checkpoint)]  # under no name here: who looks at this frame meanwhile would keep it
        if not isinstance(made[0], Tensor) or not made[0].requires_grad:
            return {"function": True, "graph": False}
        said = {"kept": watch.kept, "copied": watch.copied, "beside": watch.alive(made[0]), "aside": aside}
        by_hand(made.pop().backward, pull, twice=False, untouched=False, none_ok=True)
        after = watch.alive(x.grad, *(parameter.grad for parameter in block.parameters()))
    return {"function": True, "graph": True, **said, "after": after}


@probe
def chunked(function: Any, hidden: Tensor, weight: Tensor, targets: Tensor, chunk: int) -> dict:
    if not is_function(function):
        return {"function": False}
    h, w, y = hidden.detach().requires_grad_(), weight.detach().requires_grad_(), targets

    def run():
        loss = function.apply(h, w, y, chunk)
        if isinstance(loss, Tensor) and loss.requires_grad:
            (3 * loss).sum().backward()
        return loss.detach() if isinstance(loss, Tensor) else loss

    loss = _named(run, function)
    return {"function": True, "loss": loss, "gradients": [h.grad, w.grad],
            "inputs": [h.detach(), w.detach(), y]}  # fmt: skip


@probe
def chunked_makes(function: Any, hidden: Tensor, weight: Tensor, targets: Tensor, chunk: int) -> dict:
    if not is_function(function):
        return {"function": False}
    h, w = hidden.detach().requires_grad_(), weight.detach().requires_grad_()

    def run():
        return function.apply(h, w, targets, chunk)

    with Watch((w,), (h, targets)) as watch:
        loss = _named(run, function)
        waits = max(watch.alive(), watch.kept)
    return {"function": True, "waits": waits, "largest": watch.largest, "peak": watch.peak,
            "graph": isinstance(loss, Tensor)}  # fmt: skip


def _named(run, function):
    """``run()`` with the book closed, under the name of what it asks."""
    run.__name__ = function.__name__
    return by_hand(run, building=True, twice=False, untouched=False, none_ok=True)
