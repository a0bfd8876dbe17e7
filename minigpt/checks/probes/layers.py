"""A LoRA layer that a student wrote: what it is made of, and what it does.

    start(cls, base, rank, alpha, x)                 its parts as they are made, and its output
    run(cls, base, rank, alpha, x, A, B, pull)       its parts; output, gradients and output where it is merged, with
                                                     these A and B; backward begins with ``pull``
    held(cls, base, rank, alpha, x)                  bytes of tensors that a forward and a backward leave in it
    follow(cls, base, rank, alpha, x, A, B, steps)   what a step leaves: a function of the layer, or (s, more, merged),
                                                     and W is what it was at first, + s B A + more

``start``, ``run`` and ``follow`` return ``parts``. In ``run`` and ``follow``, what a step raises stands in the place of
what it gives, and there is no ``y`` and nothing ``left`` where A and B do not fit the layer.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from minigpt.checks.closing import by_hand
from minigpt.checks.probes import probe, tried

TENSORS = (Tensor, nn.Parameter, nn.Buffer)


@probe
def start(cls: Callable, base: nn.Linear, rank: int, alpha: float, x: Tensor | None = None) -> dict:
    made = make(cls, base, rank, alpha)
    y = None if x is None else forward(made, x)
    return {**parts(made, base), "y": y}


@probe
def run(
    cls: Callable, base: nn.Linear, rank: int, alpha: float, x: Tensor, A: Tensor, B: Tensor, pull: Tensor,
    again: tuple[Tensor, Tensor, Tensor] | None = None,
) -> dict:  # fmt: skip
    """``again``: another x, A and B, which the same layer gets afterwards."""
    made = make(cls, base, rank, alpha)
    said = parts(made, base)
    if not _filled(made, said, A, B):
        return said
    mine = x.clone(memory_format=torch.preserve_format).requires_grad_()
    said["y"] = tried(forward, made, mine)
    said["gradients"] = tried(_backward, made, mine, pull)
    said["merged"] = tried(_forward_merged, made, x)
    said |= {"x": mine.detach(), "base_gradient": made.base.weight.grad}
    if again:
        other, *AB = again
        _filled(made, said, *AB)
        said["again"] = tried(forward, made, other)
    return said


@probe
def held(cls: Callable, base: nn.Linear, rank: int, alpha: float, x: Tensor) -> int:
    """Beside the base, A, B and their gradients."""
    made = make(cls, base, rank, alpha)
    return _grown(made, lambda: bool(_backward(made, x.clone().requires_grad_(), torch.ones(()))))[0]


@probe
def follow(
    cls: Callable, base: nn.Linear, rank: int, alpha: float, x: Tensor, A: Tensor, B: Tensor, steps: list
) -> dict:
    made = make(cls, base, rank, alpha)
    said = {**parts(made, base), "left": []}
    if _filled(made, said, A, B):
        first = made.base.weight.detach().clone()
        said["left"] = [_left(made, x, partial(_step, made, step, first, A, B)) for step in [None, *steps]]
    return said


def _filled(made, said: dict, A: Tensor, B: Tensor) -> bool:
    """Whether A and B fit the layer, which has them then."""
    if said["base"] or [getattr(said[name], "shape", None) for name in ("lora_A", "lora_B")] != [A.shape, B.shape]:
        return False
    with torch.no_grad():
        made.lora_A.copy_(A), made.lora_B.copy_(B)
    return True


def _step(made, step, first: Tensor, A: Tensor, B: Tensor) -> None:
    if callable(step):
        by_hand(step, made, building=True, twice=False, untouched=False, none_ok=True)
    elif step:
        scale, more, made.merged = step  # numbers: no merged weight lies about while merge runs
        with torch.no_grad():
            made.base.weight.copy_(first + scale * B @ A + more)


def _left(made, x: Tensor, step: Callable) -> dict:
    """What there is after a step: ``fault`` is its Wrong, ``grown`` the bytes of tensors that came with it and stay."""
    grown, fault = _grown(made, lambda: tried(step))
    return {
        "fault": fault, "grown": grown, "weight": made.base.weight.detach().clone(),
        "trained": made.base.weight.requires_grad, "merged": getattr(made, "merged", None),
        "adapter": [made.lora_A.detach().clone(), made.lora_B.detach().clone()], "y": tried(_detached, made, x),
    }  # fmt: skip


def _detached(made, x: Tensor) -> Tensor:
    return forward(made, x).detach()


def _grown(made, step: Callable):
    """(bytes of tensors that are there since ``step()``, wherever, and are none of the layer's own; its value).

    An old weight that is there, and no longer the layer's, is one of them.
    """
    weight = weakref.ref(made.base.weight)
    gc.freeze()  # so that gc knows only what comes after
    try:
        given = step()
        own = [*made.parameters(), *(p.grad for p in made.parameters() if p.grad is not None)]
        sizes = {_storage(t): t.untyped_storage().nbytes() for t in gc.get_objects() if type(t) in TENSORS}
        if (old := weight()) is not None:
            sizes[_storage(old)] = old.nbytes
        return sum(nbytes for storage, nbytes in sizes.items() if storage not in {_storage(t) for t in own}), given
    finally:
        gc.unfreeze()


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


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
