"""Judging a student's ``inject``: who is adapted, who is frozen, what is returned, and what comes out of the model.

    injects(inject, (config, rank, alpha, targets))      on a fresh MiniGPT
    refuses(inject, (config, targets, why))              ValueError, and an untouched model

Layers are looked at from outside only: a ``base``, a ``lora_A`` and a ``lora_B``. What comes out is compared with a
plain MiniGPT whose weights are W + s B A.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from minigpt.checks.adapters.layer import fill, frozen, own, scales
from minigpt.checks.adapters.merging import refused
from minigpt.checks.closing import by_hand, knows
from minigpt.checks.comparing import close, same, show
from minigpt.checks.naming import given
from minigpt.checks.probes import layers as probed
from minigpt.checks.verdict import Wrong
from minigpt.model import GPT, GPTConfig

knows(__name__)
Targets = list[str] | None  # None: every linear layer of the blocks


def injects(inject: Callable, case: tuple[GPTConfig, int, float, Targets]) -> None:
    """``inject(model, rank, alpha, targets)`` on a fresh MiniGPT."""
    config, rank, alpha, targets = case
    what = f"inject(model, {rank}, {alpha:g}, {targets})"
    torch.manual_seed(1)
    model = GPT(config)
    plain, tokens = copy.deepcopy(model), torch.randint(config.vocab_size, (2, config.context))  # (B, T)
    names = by_hand(inject, model, rank, alpha, targets, building=True, twice=False, untouched=False)
    layers = _layers(names, model, plain, rank, alpha, targets, what)
    start = _logits(model, tokens)
    close(start, _logits(plain, tokens), f"{what}: the logits at the start", rtol=1e-5, atol=1e-6)
    adapters = {name: fill(made, seed=i) for i, (name, made) in enumerate(layers.items())}
    mine = _logits(model, tokens)
    merged = partial(_merged_logits, plain, adapters, tokens)
    wrong, truth = given(scales(rank, alpha), merged), merged(alpha / rank)
    close(mine, truth, f"{what}: the logits with other adapters", rtol=1e-4, atol=1e-4, wrong=wrong)


def refuses(inject: Callable, case: tuple[GPTConfig, list[str], str]) -> None:
    config, targets, why = case
    what, model = f"targets {targets}", GPT(config)
    refused(inject, model, 2, 3.0, targets, why=f"{what}: {why}")
    if any(hasattr(m, "lora_A") for m in model.modules()) or not all(p.requires_grad for p in model.parameters()):
        raise Wrong(
            "changed-first", f"{what}: it is refused, but the model is changed already; look first, then change"
        )


def _layers(names, model: GPT, plain: GPT, rank: int, alpha: float, targets: Targets, what: str) -> dict[str, Any]:
    """The adapted layers by their names, if they are who they should be."""
    linears = {name: module for name, module in plain.named_modules() if isinstance(module, nn.Linear)}
    wanted = [n for n in linears if n != "lm_head" and (targets is None or n.split(".")[-1] in targets)]
    _names(names, wanted, what)
    adapted = {name for name, module in model.named_modules() if hasattr(module, "lora_A")}
    if adapted != set(wanted):
        some = sorted(adapted ^ set(wanted))[0]
        if some in adapted:
            raise Wrong("adapted-unnamed", f"{what}: {some} has an adapter, and is not among the names")
        raise Wrong("named-not-adapted", f"{what}: {some} is returned, but has no adapter")
    layers: dict[str, Any] = {name: model.get_submodule(name) for name in wanted}
    for name, made in layers.items():
        own(probed.parts(made), what)
        if not same(made.base.weight, linears[name].weight):
            raise Wrong("base-changed", f"{what}: the weight of {name} is not what it was")
        shapes = {"lora_A": (rank, linears[name].in_features), "lora_B": (linears[name].out_features, rank)}
        for part, right in shapes.items():
            shape = tuple(getattr(made, part).shape)
            if shape != right:
                swapped = shape[:1] == (alpha,)
                raise Wrong(
                    "rank-and-alpha" if swapped else "wrong-shape",
                    f"{what}: {part} of {name} is {shape}, not {right}{': are rank and alpha swapped?' * swapped}",
                )
    if len({id(made.lora_A) for made in layers.values()}) < len(layers):
        raise Wrong("shared-adapter", f"{what}: several layers share one adapter; each needs its own")
    if model.lm_head.weight is not model.token_embedding.weight:
        raise Wrong("untied", f"{what}: the head is no longer tied to the token embedding")
    frozen(probed.trained(model), {f"{name}.{part}" for name in wanted for part in ("lora_A", "lora_B")}, what)
    return layers


def _names(names, wanted: list[str], what: str) -> None:
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
        raise Wrong("wrong-type", f"{what} returns {show(names)}; a list of names is asked for")
    if any("lm_head" in name for name in names):
        raise Wrong(
            "head-adapted",
            f"{what}: the head is adapted; its weight is the token embedding's, and merging would change both",
        )
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


def _merged_logits(plain: GPT, adapters: dict[str, tuple[Tensor, Tensor]], tokens: Tensor, scale: float) -> Tensor:
    """Of ``plain`` with W + scale B A in the place of each W."""
    merged = copy.deepcopy(plain)
    for name, (A, B) in adapters.items():
        merged.get_parameter(f"{name}.weight").data += scale * B @ A
    return _logits(merged, tokens)


def _logits(model: GPT, tokens: Tensor) -> Tensor:
    def forward():
        return model(tokens)

    with torch.no_grad():
        return by_hand(forward, building=True)
