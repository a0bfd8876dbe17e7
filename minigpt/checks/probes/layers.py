"""A LoRA layer that a student wrote: what it is made of, and what it does.

    start(cls, base, rank, alpha, x)                 its parts as they are made, and its output
    run(cls, base, rank, alpha, x, A, B, pull)       its parts; output, gradients and output where it is merged, with
                                                     these A and B; backward begins with ``pull``

Both return ``parts``. In ``run``, what a step raises stands in the place of what it gives, and there is no ``y`` where
A and B do not fit the layer.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from minigpt.checks.closing import by_hand
from minigpt.checks.probes import probe, tried


@probe
def start(cls: Callable, base: nn.Linear, rank: int, alpha: float, x: Tensor | None = None) -> dict:
    made = make(cls, base, rank, alpha)
    y = None if x is None else forward(made, x)
    return {**parts(made, base), "y": y}


@probe
def run(cls: Callable, base: nn.Linear, rank: int, alpha: float, x: Tensor, A: Tensor, B: Tensor, pull: Tensor) -> dict:
    made = make(cls, base, rank, alpha)
    said = parts(made, base)
    if said["base"] or [getattr(said[name], "shape", None) for name in ("lora_A", "lora_B")] != [A.shape, B.shape]:
        return said
    with torch.no_grad():
        made.lora_A.copy_(A), made.lora_B.copy_(B)
    mine = x.clone().requires_grad_()
    said["y"] = tried(forward, made, mine)
    said["gradients"] = tried(_backward, made, mine, pull)
    said["merged"] = tried(_forward_merged, made, x)
    return {**said, "x": mine.detach(), "base_gradient": made.base.weight.grad}


def make(cls: Callable, base: nn.Linear, rank: int, alpha: float):
    return by_hand(cls, base, rank, alpha, building=True, twice=False, untouched=False)


def parts(made, base: nn.Linear | None = None) -> dict:
    """What there is: tensors as copies of the same class, other things as words; "" where it is the right thing."""
    module = isinstance(made, nn.Module) and "_modules" in vars(made)  # a module that was never set up has none
    said: dict = {"module": module, "kinds": [], "trained": [], "base": "missing"}
    if module:
        said["kinds"] = sorted({kind.__module__ for part in made.modules() for kind in type(part).__mro__})
        said["trained"] = trained(made)
    for name in ("lora_A", "lora_B"):
        value = getattr(made, name, Tensor)
        said[name] = _copy(value) if isinstance(value, Tensor) else _what(value)
    layer = getattr(made, "base", Tensor)
    said["base"] = "" if isinstance(layer, nn.Linear) else _what(layer)
    said["base_given"] = layer is base
    said["base_parameters"] = {name: _copy(value) for name, value in base.named_parameters()} if base else {}
    return said


def trained(module: nn.Module) -> list[str]:
    """The names of the parameters that take a gradient."""
    return sorted(name for name, parameter in module.named_parameters() if parameter.requires_grad)


def _copy(tensor: Tensor) -> Tensor:
    copied = tensor.detach().clone()
    return nn.Parameter(copied, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else copied


def _what(value) -> str:
    return "missing" if value is Tensor else "None" if value is None else f"of type {type(value).__name__}"


def forward(made, x: Tensor) -> Tensor:
    """made(x), called twice."""

    def forward(x):
        return made(x)

    return by_hand(forward, x, building=True, untouched=False)


def _backward(made, x: Tensor, pull: Tensor) -> list[Tensor | None]:
    """The gradients of A, B and x."""

    def backward():
        y = made(x)
        if isinstance(y, Tensor) and y.requires_grad:
            (y.float() * pull).sum().backward()

    by_hand(backward, building=True, twice=False, none_ok=True)
    return [made.lora_A.grad, made.lora_B.grad, x.grad]


def _forward_merged(made, x: Tensor) -> Tensor:
    made.merged = True
    try:
        return forward(made, x)
    finally:
        made.merged = False
