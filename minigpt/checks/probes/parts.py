"""A MiniGPT that a student put together from the course's parts: what is in it, and what comes out of it.

    assembled(assemble, model, rank, alpha, upcast, adapters, tokens)     ``adapters``: {a layer's name: (A, B)}

The record has logits only where every adapter is of the shape of its A and B.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from minigpt.checks.calling import call
from minigpt.checks.probes import open_probe, tried
from minigpt.checks.probes.layers import trained
from minigpt.model import GPT

STORED = ("packed", "absmax", "codes", "offset")
OPTIONS = ("rank", "alpha", "kind", "scaling", "dropout", "merged", "block", "compute_dtype", "dtype")


@open_probe
def assembled(
    assemble: Callable, model: GPT, rank: int, alpha: float, upcast: bool, adapters: dict, tokens: Tensor
) -> dict:
    made = call(assemble, model, rank, alpha, upcast=upcast, twice=False, untouched=False)
    said: dict = {"kinds": kinds(made), "given": made is model}
    if not isinstance(made, GPT):
        return said
    layers = {name: made.get_submodule(name) for name in adapters}
    pairs: dict[str, list[Any]] = {
        name: [getattr(layer, part, None) for part in ("lora_A", "lora_B")] for name, layer in layers.items()
    }
    said |= {
        "layers": {name: _layer(made.get_submodule(name)) for name in (*adapters, "lm_head")},
        "tied": getattr(made.lm_head, "weight", None) is made.token_embedding.weight,
        "parameters": {name: parameter.detach().clone() for name, parameter in made.named_parameters()},
        "trained": trained(made),
        "training": all(module.training for module in made.modules()),
        "own": len({id(pair[0]) for pair in pairs.values()}) == len(pairs),
    }
    shapes = [[getattr(part, "shape", None) for part in pair] for pair in pairs.values()]
    if shapes != [[A.shape, B.shape] for A, B in adapters.values()]:
        return said
    said["start"] = tried(_logits, made, tokens)
    with torch.no_grad():
        for name, pair in pairs.items():
            for part, value in zip(pair, adapters[name]):
                part.copy_(value)
    said["adapted"] = tried(_logits, made, tokens)
    return said


def kinds(value) -> list[str]:
    """The full names of its class, and of those that it is made from."""
    return [f"{kind.__module__}.{kind.__qualname__}" for kind in type(value).__mro__]


def _layer(layer) -> dict:
    base = getattr(layer, "base", None)
    return {
        "kinds": kinds(layer), **_options(layer), "base": {"kinds": kinds(base), **_options(base)},
        **{part: _copy(getattr(layer, part, None)) for part in ("lora_A", "lora_B")},
        **{part: _copy(getattr(base, part, None)) for part in STORED},
    }  # fmt: skip


def _options(layer) -> dict:
    return {name: getattr(layer, name, None) for name in OPTIONS}


def _copy(value):
    return value.detach().clone() if isinstance(value, Tensor) else None


def _logits(model: GPT, tokens: Tensor) -> Tensor:
    def forward():
        return model(tokens).float()

    with torch.no_grad():
        return call(forward, twice=False)
