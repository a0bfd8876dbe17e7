"""A model into which a student's ``inject`` puts adapters, and what it is then.

injected(inject, model, rank, alpha, targets, tokens, fills)   names, layers, and logits: at the start, and filled
refused(inject, model, targets)                                what it raised, and what it has changed all the same
sizes(inject, model, rank, alpha)                              (numbers, bytes of one, takes a gradient) by parameter
trained(inject, model, rank, alpha, draws, batches, lr)        the losses of AdamW's steps, from these A

A fill is (A, B) by a layer's full name; a draw is an A.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from minigpt.checks.closing import by_hand
from minigpt.checks.probes import layers, probe, tried

Fills = Mapping[str, tuple[Tensor, Tensor]]


@probe
def injected(
    inject: Callable, model: Any, rank: int, alpha: float, targets: list[str] | None, tokens: Tensor, fills: Fills
) -> dict:
    names = _inject(inject, model, rank, alpha, targets)
    adapted = _adapted(model)
    said = {
        "names": list(names) if isinstance(names, (set, frozenset)) else names,
        "layers": {name: layers.parts(made) for name, made in adapted.items()},
        "weights": {name: _weight(made) for name, made in adapted.items()},
        "shared": len({id(made.lora_A) for made in adapted.values()}) < len(adapted),
        "tied": getattr(model.lm_head, "weight", None) is model.token_embedding.weight,
        "trained": layers.trained(model),
        "start": tried(_logits, model, tokens),
    }
    with torch.no_grad():
        for name, fill in fills.items():
            for mine, given in zip(_pair(adapted.get(name)), fill):
                if isinstance(mine, Tensor) and mine.shape == given.shape:
                    mine.copy_(given)
    return {**said, "filled": tried(_logits, model, tokens)}


@probe
def refused(inject: Callable, model: nn.Module, rank: int, alpha: float, targets: list[str]) -> dict:
    fault = tried(_inject, inject, model, rank, alpha, targets)
    changed = bool(_adapted(model)) or not all(parameter.requires_grad for parameter in model.parameters())
    return {"fault": fault if isinstance(fault, Exception) else None, "changed": changed}


@probe
def sizes(inject: Callable, model: nn.Module, rank: int, alpha: float) -> dict[str, tuple[int, int, bool]]:
    _inject(inject, model, rank, alpha, None)
    return {name: (p.numel(), p.element_size(), p.requires_grad) for name, p in model.named_parameters()}


@probe
def trained(
    inject: Callable, model: Any, rank: int, alpha: float, draws: Mapping[str, Tensor], batches: list, lr: float
) -> list[float]:
    _inject(inject, model, rank, alpha, None)
    with torch.no_grad():
        for name, A in draws.items():
            model.get_submodule(name).lora_A.copy_(A)

    def forward(tokens, targets):
        return model(tokens, targets)

    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=lr)
    losses = []
    for batch in batches:
        loss = by_hand(forward, *batch, building=True, twice=False, untouched=False)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def _inject(inject: Callable, model: nn.Module, *options):
    return by_hand(inject, model, *options, building=True, twice=False, untouched=False)


def _adapted(model: nn.Module) -> dict[str, nn.Module]:
    """The layers that have an A, by their names."""
    return {name: module for name, module in model.named_modules() if hasattr(module, "lora_A")}


def _pair(made) -> list:
    return [getattr(made, name, None) for name in ("lora_A", "lora_B")]


def _weight(made) -> Tensor | None:
    """Of its base, if there is one."""
    weight = getattr(getattr(made, "base", None), "weight", None)
    return weight.detach().clone() if isinstance(weight, Tensor) else None


def _logits(model: nn.Module, tokens: Tensor) -> Tensor:
    def forward():
        return model(tokens)

    with torch.no_grad():
        return by_hand(forward, building=True)
