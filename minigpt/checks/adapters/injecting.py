"""Judging a student's ``inject``: who is adapted, who is frozen, what is returned, and what comes out of the model.

    injects(inject, (config, rank, alpha, targets))      on a fresh MiniGPT
    refuses(inject, (config, targets, why))              ValueError, and an untouched model
    edges(inject, case)                                  either of both, by the case

Layers are looked at from outside only: a ``base``, a ``lora_A`` and a ``lora_B``. What comes out is compared with a
plain MiniGPT whose weights are W + s B A.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor, nn

from minigpt.checks.adapters.layer import frozen, own, scales, values
from minigpt.checks.adapters.merging import refused
from minigpt.checks.closing import knows
from minigpt.checks.comparing import close, same, show
from minigpt.checks.naming import given
from minigpt.checks.probes import adapting, unless_wrong
from minigpt.checks.verdict import Wrong
from minigpt.model import GPT, GPTConfig

knows(__name__)
Targets = list[str] | None  # None: every linear layer of the blocks
Adapters = Mapping[str, tuple[Tensor, Tensor]]  # (A, B) by a layer's full name


def injects(inject: Callable, case: tuple[GPTConfig, int, float, Targets]) -> None:
    """``inject(model, rank, alpha, targets)`` on a fresh MiniGPT."""
    config, rank, alpha, targets = case
    what = f"inject(model, {rank}, {alpha:g}, {targets})"
    torch.manual_seed(1)
    plain, tokens = GPT(config), torch.randint(config.vocab_size, (2, config.context))  # (B, T)
    linears = linear_layers(plain, targets)
    fills = {name: adapter(layer, rank, seed=1000 * i) for i, (name, layer) in enumerate(linears.items())}
    said = adapting.injected(inject, copy.deepcopy(plain), rank, alpha, targets, tokens, fills)
    _names(said["names"], list(linears), what)
    _layers(said, linears, rank, alpha, what)
    start = unless_wrong(said["start"])
    close(start, _logits(plain, tokens), f"{what}: the logits at the start", rtol=1e-5, atol=1e-6)
    logits = partial(_merged_logits, plain, fills, tokens)
    wrong, truth = given(scales(rank, alpha), logits) if fills else {}, logits(alpha / rank)
    filled = unless_wrong(said["filled"])
    close(filled, truth, f"{what}: the logits with other adapters", rtol=1e-4, atol=1e-4, wrong=wrong)


def refuses(inject: Callable, case: tuple[GPTConfig, list[str], str]) -> None:
    config, targets, why = case
    what, said = f"targets {targets}", adapting.refused(inject, GPT(config), 2, 3.0, targets)
    refused(said["fault"], why=f"{what}: {why}")
    if said["changed"]:
        raise Wrong(
            "changed-first", f"{what}: it is refused, but the model is changed already; look first, then change"
        )


def edges(inject: Callable, case: tuple) -> None:
    """A list of targets that is refused, or an odd one that is not: the case says which."""
    refuses(inject, case) if len(case) == 3 else injects(inject, case)


def linear_layers(model: GPT, targets: Targets = None) -> dict[str, nn.Linear]:
    """The linear layers of the blocks that ``targets`` name, by their full names."""
    linears = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    return {n: m for n, m in linears.items() if n != "lm_head" and (targets is None or n.split(".")[-1] in targets)}


def adapter(layer: nn.Linear, rank: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """An A and a B for it, which are not zero."""
    return values((rank, layer.in_features), seed), values((layer.out_features, rank), seed)


def merge(model: GPT, adapters: Adapters, scale: float) -> GPT:
    """``model`` with W + scale B A in the place of each W. Raises RuntimeError where they do not fit."""
    with torch.no_grad():
        for name, (A, B) in adapters.items():
            model.get_parameter(f"{name}.weight").add_(scale * B @ A)
    return model


def _layers(said: dict, linears: dict[str, nn.Linear], rank: int, alpha: float, what: str) -> None:
    """The adapted layers are who they should be. ``said``: ``adapting.injected``."""
    adapted, wanted = set(said["layers"]), set(linears)
    if adapted != wanted:
        some = min(adapted ^ wanted)
        if some in adapted:
            raise Wrong("adapted-unnamed", f"{what}: {some} has an adapter, and is not among the names")
        raise Wrong("named-not-adapted", f"{what}: {some} is returned, but has no adapter")
    for name, linear in linears.items():
        parts = said["layers"][name]
        own(parts, what)
        if not same(said["weights"][name], linear.weight):
            raise Wrong("base-changed", f"{what}: the weight of {name} is not what it was")
        shapes = {"lora_A": (rank, linear.in_features), "lora_B": (linear.out_features, rank)}
        for part, right in shapes.items():
            shape = tuple(parts[part].shape)
            if shape != right:
                swapped = shape[:1] == (alpha,)
                raise Wrong(
                    "rank-and-alpha" if swapped else "wrong-shape",
                    f"{what}: {part} of {name} is {shape}, not {right}{': are rank and alpha swapped?' * swapped}",
                )
    if said["shared"] is not False:
        raise Wrong("shared-adapter", f"{what}: several layers share one adapter; each needs its own")
    if said["tied"] is not True:
        raise Wrong("untied", f"{what}: the head is no longer tied to the token embedding")
    frozen(said["trained"], {f"{name}.{part}" for name in linears for part in ("lora_A", "lora_B")}, what)


def _names(names, wanted: list[str], what: str) -> None:
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
        raise Wrong("wrong-type", f"{what} returns {show(names)}; a list of names is asked for")
    if any("lm_head" in name for name in names):
        raise Wrong(
            "head-adapted",
            f"{what}: the head is adapted; its weight is the token embedding's, and merging would change both",
        )
    if names and not wanted:
        raise Wrong("empty-means-all", f"{what}: an empty list names no layer, so none is adapted; None means all")
    if names and not any("." in name for name in names):
        raise Wrong("short-names", f"{what}: {names[0]!r} is no full name, such as {wanted[0]!r}")
    missing, extra = set(wanted) - set(names), set(names) - set(wanted)
    for id, some, mistake in (("names-missing", missing, "missing from the names"),
                              ("no-target", extra, "among the names, and no target")):  # fmt: skip
        if some:
            more = f" and {len(some) - 1} more are" if len(some) > 1 else " is"
            raise Wrong(id, f"{what}: {min(some)}{more} {mistake}")
    if len(names) != len(wanted):
        raise Wrong("name-twice", f"{what}: a name is returned twice")


def _merged_logits(plain: GPT, adapters: Adapters, tokens: Tensor, scale: float) -> Tensor:
    return _logits(merge(copy.deepcopy(plain), adapters, scale), tokens)


@torch.no_grad()
def _logits(model: GPT, tokens: Tensor) -> Tensor:
    return model(tokens)
