"""Judging how a student merges an adapter into its layer: W + s B A, once, then W again.

    merges(LoRALinear, merge, case)                what merge leaves in the layer; the truth is peft's merge
    unmerges(LoRALinear, merge, unmerge, case)     what unmerge leaves of a layer that is merged
    refuses(LoRALinear, merge, unmerge, case)      merging twice, unmerging twice

A layer's adapter is not zero here, and each judgement begins with a layer of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from minigpt.checks.adapters.layer import Case, fill, peft_layer, scales, shaped
from minigpt.checks.calling import explained
from minigpt.checks.closing import asked_first, by_hand, knows
from minigpt.checks.comparing import close, same, show
from minigpt.checks.naming import given
from minigpt.checks.probes import layers
from minigpt.checks.verdict import Wrong

knows(__name__)
LOOSE: dict[str, Any] = dict(rtol=1e-5, atol=1e-5)


class _Layer:
    """A student's layer on a fresh base, with its adapter filled, and what it was."""

    def __init__(self, cls: Callable, case: Case) -> None:
        torch.manual_seed(case.n_in)
        base = nn.Linear(case.n_in, case.n_out, bias=case.bias)
        self.W, self.x, self.case = base.weight.detach().clone(), torch.randn(3, case.n_in), case
        self.made = layers.make(cls, base, case.rank, case.alpha)
        shaped(layers.parts(self.made), case)
        self.A, self.B = fill(self.made)
        self.what = f"a base {case.n_in} -> {case.n_out}, rank {case.rank}, alpha {case.alpha:g}"

    def do(self, change: Callable) -> dict:
        """What ``change(layer)`` leaves."""
        try:
            by_hand(change, self.made, building=True, twice=False, untouched=False, none_ok=True)
        except Wrong as verdict:
            watching = {"leaf": "Autograd is watching; work under torch.no_grad()"}
            raise explained(verdict, watching, "autograd-watches") from verdict.__cause__
        return self.left()

    def left(self) -> dict:
        made, x = self.made, self.x
        return {
            "weight": made.base.weight.detach().clone(),
            "trained": made.base.weight.requires_grad,
            "merged": getattr(made, "merged", None),
            "adapter": [made.lora_A.detach().clone(), made.lora_B.detach().clone()],
            "y": by_hand(lambda: made(x).detach(), building=True),
        }

    def merge(self) -> None:
        """Into the state that a right merge leaves, whatever the student's own did."""
        with torch.no_grad():
            self.made.base.weight.copy_(self.W + self.case.alpha / self.case.rank * self.B @ self.A)
        self.made.merged = True


def merges(cls: Callable, merge: Callable, case: Case) -> None:
    layer = _Layer(cls, case)
    before, after = asked_first([layer.left, partial(layer.do, merge)])
    _merged(layer, after, before["y"], "after merge")


def unmerges(cls: Callable, merge: Callable, unmerge: Callable, case: Case) -> None:
    layer = _Layer(cls, case)
    before = layer.left()
    try:
        layer.do(merge)  # what it keeps for later, it keeps here
    except Wrong as verdict:
        if verdict.id == "not-written":
            raise
    layer.merge()
    after = layer.do(unmerge)
    _apart(layer, after, layer.W, "after unmerge")
    close(after["y"], before["y"], f"{layer.what}: the output after unmerge", **LOOSE)
    layer.do(merge)
    layer.merge()
    with torch.no_grad():
        layer.made.base.weight.add_(0.5)
    _apart(layer, layer.do(unmerge), layer.W + 0.5, "after merge, a change of the merged weight by 0.5, and unmerge")


def refuses(cls: Callable, merge: Callable, unmerge: Callable, case: Case) -> None:
    layer = _Layer(cls, case)
    y = layer.do(merge)["y"]
    refused(merge, layer.made, why=f"{layer.what}: merging twice adds the adapter twice")
    _merged(layer, layer.left(), y, "after a second merge, which is refused")
    layer.do(unmerge)
    refused(unmerge, layer.made, why=f"{layer.what}: unmerging what is not merged takes the adapter away from W")
    _apart(layer, layer.left(), layer.W, "after a second unmerge, which is refused")


def refused(function: Callable, *args, why: str) -> None:
    """It must raise ValueError."""
    try:
        by_hand(function, *args, building=True, twice=False, untouched=False, none_ok=True)
    except Wrong as verdict:
        if isinstance(verdict.__cause__, ValueError):
            return
        raise
    raise Wrong("not-refused", f"{why}; a ValueError is asked for, and nothing is raised")


def _merged(layer: _Layer, left: dict, y: Tensor, which: str) -> None:
    case, what, W, BA = layer.case, layer.what, layer.W, layer.B @ layer.A
    base, scale = nn.Linear(case.n_in, case.n_out, bias=False), case.alpha / case.rank
    base.weight.data = W.clone()
    peft = peft_layer(base, case, layer.A, layer.B)
    peft.merge()
    wrong = given(scales(case.rank, case.alpha), lambda other: W + other * BA)
    wrong |= {"no-base": ("the base's weight is lost: W' = W + s B A", scale * BA),
              "not-merged": ("it is still W: nothing is merged", W),
              "subtracted": ("the adapter is taken away from W, not added", W - scale * BA),
              "base-scaled": ("W is scaled as well", scale * (W + BA)),
              "merged-twice": ("the adapter is in it twice; refuse before you write", W + 2 * scale * BA)}  # fmt: skip
    close(left["weight"], peft.base_layer.weight, f"{what}: the base's weight {which}", wrong=wrong, **LOOSE)
    if left["trained"]:
        raise Wrong("not-frozen", f"{what}: {which}, base.weight takes a gradient; work under torch.no_grad()")
    if left["merged"] is not True:
        raise Wrong(
            "flag", f"{what}: {which}, layer.merged is {show(left['merged'])}; it must be True: forward asks it"
        )
    if not same(left["adapter"], [layer.A, layer.B]):
        raise Wrong("adapter-changed", f"{what}: {which}, the adapter is changed; unmerge needs it as it was")
    close(left["y"], y, f"{what}: the output {which}", **LOOSE)


def _apart(layer: _Layer, left: dict, weight: Tensor, which: str) -> None:
    case, BA, right = layer.case, layer.B @ layer.A, layer.case.alpha / layer.case.rank
    wrong = {"still-merged": ("it is still merged: nothing is taken away", weight + right * BA),
             "added-again": ("the adapter is added once more, not taken away", weight + 2 * right * BA)}  # fmt: skip
    wrong |= given(scales(case.rank, case.alpha), lambda scale: weight + (right - scale) * BA)
    if not same(weight, layer.W):
        wrong["old-copy"] = (
            "an old copy of W comes back; what was added since is lost, and a copy costs what LoRA saves", layer.W
        )  # fmt: skip
    close(left["weight"], weight, f"{layer.what}: the base's weight {which}", wrong=wrong, **LOOSE)
    if left["merged"] is not False:
        raise Wrong(
            "flag", f"{layer.what}: {which}, layer.merged is {show(left['merged'])}; it must be False: forward asks it"
        )
