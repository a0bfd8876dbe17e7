"""How many parameters train: r (in + out) for each target, and with DoRA ``out`` more.

Of a model, by looking at it; or from a configuration alone, with the shapes that its family lists. The families know
nothing of this package; what measures a model with adapters stands above both.
"""

from __future__ import annotations

from collections.abc import Collection
from math import prod

from torch import nn

from minigpt.lora.layer import shapes
from minigpt.lora.matching import match
from minigpt.memory.families import Architecture


def trainable_parameters(model: nn.Module) -> int:
    """How many parameters take a gradient; a shared one counts once."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def adapter_parameters(
    architecture, rank: int = 8, targets: str | Collection[str] = ("q_proj", "v_proj"), kind: str = "lora"
) -> int:
    """How many parameters ``inject`` would train, without building a model.

    ``architecture`` is anything that ``Architecture.of`` takes: a configuration, a path, or a name such as
    "llama-7b". ``targets`` is "all-linear" or a list of names of linear layers, with their "_proj". Of a mixture of
    experts these are attention and what is dense, since experts are no linear layers. Raises ValueError for a value
    that is not allowed.
    """
    tensors = Architecture.of(architecture).tensors()
    linears = {f"{t.name}_proj": t.shape for t in tensors if t.kind in ("linear", "gate")}
    chosen = match(targets, linears, {})
    adapters = [shapes(n_in, n_out, rank, kind, name) for name, (n_out, n_in) in chosen.items()]
    return sum(prod(shape) for adapter in adapters for shape in adapter.values())
