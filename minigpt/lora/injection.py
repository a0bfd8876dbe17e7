"""Adapters into a whole model, in place of its linear layers; and merging and unmerging all of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from minigpt.lora.layer import LoRALinear, check_options, shapes
from minigpt.lora.matching import select


def inject(
    model: nn.Module, rank: int = 8, alpha: float = 16, targets: str | list[str] | tuple = ("q_proj", "v_proj"),
    kind: str = "lora", *, dropout: float = 0.0, adapter_dtype: torch.dtype | None = torch.float32,
    generator: torch.Generator | None = None,
) -> list[str]:  # fmt: skip
    """Freeze ``model``, put a LoRALinear in place of each target, and return their names, in the model's order.

    ``targets`` is "all-linear" or a list of layers' names, in full or the end of them ("q_proj"): see ``matching``.
    The other arguments are LoRALinear's, the same for each layer. Raises ValueError for a value that is not allowed,
    and leaves the model as it was.
    """
    check_options(alpha, dropout, adapter_dtype, generator)
    linears = select(model, targets)
    for name, linear in linears.items():
        shapes(linear.in_features, linear.out_features, rank, kind, name)
    model.requires_grad_(False)
    options: dict[str, Any] = dict(dropout=dropout, adapter_dtype=adapter_dtype, generator=generator)
    for name, linear in linears.items():
        model.set_submodule(name, LoRALinear(linear, rank, alpha, kind, **options).train(linear.training))
    return list(linears)


def adapters(model: nn.Module, merged: bool | None = None) -> dict[str, LoRALinear]:
    """The layers of ``model`` that have an adapter, by name.

    Raises ValueError if there is none, or if ``merged`` is given and one is not merged, or is, against what it says.
    """
    layers = {name: module for name, module in model.named_modules() if isinstance(module, LoRALinear)}
    if not layers:
        raise ValueError("model has no adapters; it must be one that inject() or load() gave them")
    for name, layer in layers.items():
        if merged is not None:
            layer.expect(merged, name)
    return layers


def merge(model: nn.Module) -> None:
    """Write every adapter into its weight. Raises ValueError if the model has none, or one is merged already."""
    for layer in adapters(model, merged=False).values():
        layer.merge()


def unmerge(model: nn.Module) -> None:
    """Take every adapter out of its weight, to rounding error. Raises ValueError if one is not merged."""
    for layer in adapters(model, merged=True).values():
        layer.unmerge()


@contextmanager
def idle(model: nn.Module) -> Iterator[None]:
    """Inside, the model is its base: no adapter adds anything, and none is merged. Afterwards all is as it was.

    Raises ValueError if the model has none, or one is merged, since then the base is gone.
    """
    layers = adapters(model, merged=False).values()
    for layer in layers:
        layer.idle = True
    try:
        yield
    finally:
        for layer in layers:
            layer.idle = False
