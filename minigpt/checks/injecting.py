"""Judging a student's ``inject``: who is adapted, who is frozen, what is returned, and what comes out of the model.

Layers are looked at from outside only: a ``base``, a ``lora_A`` and a ``lora_B``. What comes out is compared with a
plain MiniGPT whose weights are W + s B A.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from minigpt.checks.adapters import fill, frozen, own, refused, scales
from minigpt.checks.calling import call
from minigpt.checks.comparing import close, same, show
from minigpt.model import GPT, GPTConfig


def injection(inject: Callable, config: GPTConfig, rank: int, alpha: float, targets: list[str] | None) -> None:
    """``inject(model, rank, alpha, targets)`` on a fresh MiniGPT; ``targets`` None is every linear of the blocks."""
    what = f"inject(model, {rank}, {alpha:g}, {targets})"
    torch.manual_seed(1)
    model = GPT(config)
    plain = copy.deepcopy(model)
    linears = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    wanted = [n for n in linears if n != "lm_head" and (targets is None or n.split(".")[-1] in targets)]
    names = call(inject, model, rank, alpha, targets, twice=False, untouched=False)
    _names(names, wanted, what)
    adapted = {name for name, module in model.named_modules() if hasattr(module, "lora_A")}
    if adapted != set(wanted):
        some = sorted(adapted ^ set(wanted))[0]
        state = "has an adapter, and is not among the names" if some in adapted else "is returned, but has no adapter"
        raise AssertionError(f"{what}: {some} {state}")
    layers = {name: model.get_submodule(name) for name in wanted}
    for name, made in layers.items():
        own(made, what)
        if not same(made.base.weight, plain.get_submodule(name).weight):
            raise AssertionError(f"{what}: the weight of {name} is not what it was")
        shape, right = tuple(made.lora_A.shape), (rank, linears[name].in_features)
        if shape != right:
            turned = ": are rank and alpha swapped?" if shape[0] == alpha else ""
            raise AssertionError(f"{what}: lora_A of {name} is {shape}, not {right}{turned}")
    if len({id(made.lora_A) for made in layers.values()}) < len(layers):
        raise AssertionError(f"{what}: several layers share one adapter; each needs its own")
    if model.lm_head.weight is not model.token_embedding.weight:
        raise AssertionError(f"{what}: the head is no longer tied to the token embedding")
    frozen(model, {f"{name}.{part}" for name in wanted for part in ("lora_A", "lora_B")}, what)
    tokens = torch.randint(config.vocab_size, (2, config.context))  # (B, T)
    close(_logits(model, tokens), _logits(plain, tokens), f"{what}: the logits at the start", rtol=1e-5, atol=1e-6)
    merged = {}
    for mistake, scale in {"": alpha / rank, **scales(rank, alpha)}.items():
        merged[mistake] = copy.deepcopy(plain)
        for i, (name, made) in enumerate(layers.items()):
            A, B = fill(made, seed=i)
            merged[mistake].get_submodule(name).weight.data += scale * B @ A
    logits = {mistake: _logits(other, tokens) for mistake, other in merged.items()}
    truth = logits.pop("")
    close(_logits(model, tokens), truth, f"{what}: the logits with other adapters", rtol=1e-4, atol=1e-4, wrong=logits)


def refuses(inject: Callable, config: GPTConfig, targets: list[str], why: str) -> None:
    """``inject`` must raise ValueError for ``targets`` and leave the model as it was."""
    what, model = f"targets {targets}", GPT(config)
    refused(inject, model, 2, 3.0, targets, why=f"{what}: {why}")
    if any(hasattr(m, "lora_A") for m in model.modules()) or not all(p.requires_grad for p in model.parameters()):
        raise AssertionError(f"{what}: it is refused, but the model is changed already; look first, then change")


def _names(names, wanted: list[str], what: str) -> None:
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
        raise AssertionError(f"{what} returns {show(names)}; a list of names is asked for")
    if any("lm_head" in name for name in names):
        raise AssertionError(f"{what}: the head is adapted; its weight is the token embedding's, and merging would "
                             "change both")  # fmt: skip
    if names and not any("." in name for name in names):
        raise AssertionError(f"{what}: {names[0]!r} is no full name, such as {wanted[0]!r}")
    missing, extra = set(wanted) - set(names), set(names) - set(wanted)
    for some, mistake in ((missing, "missing from the names"), (extra, "among the names, and no target")):
        if some:
            more = f" and {len(some) - 1} more are" if len(some) > 1 else " is"
            raise AssertionError(f"{what}: {min(some)}{more} {mistake}")
    if len(names) != len(wanted):
        raise AssertionError(f"{what}: a name is returned twice")


def _logits(model: GPT, tokens: Tensor) -> Tensor:
    with torch.no_grad():
        return model(tokens)
