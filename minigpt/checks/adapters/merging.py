"""Judging how a student merges an adapter into its layer: W + s B A, once, then W again.

    merges(LoRALinear, merge, case)                what merge leaves in the layer; the truth is peft's merge
    unmerges(LoRALinear, merge, unmerge, case)     what unmerge leaves of a layer that is merged
    refuses(LoRALinear, merge, unmerge, case)      merging twice, unmerging twice

A layer's adapter is not zero here, and each judgement begins with a layer of its own, which is made, merged and looked
at where the student's code is (``layers.follow``). A case with a bias has a weight that is not contiguous.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from minigpt.checks.adapters.layer import Case, peft_layer, scales, shaped, turned, values
from minigpt.checks.calling import explained
from minigpt.checks.closing import knows
from minigpt.checks.comparing import close, same, show
from minigpt.checks.naming import given
from minigpt.checks.probes import layers, unless_wrong
from minigpt.checks.verdict import Wrong

knows(__name__)


class _Layer:
    """A base, its adapter, and how a student's layer that has both is asked."""

    def __init__(self, cls: Callable, case: Case) -> None:
        torch.manual_seed(case.n_in)
        base = nn.Linear(case.n_in, case.n_out, bias=case.bias, dtype=case.dtype)
        self.base = turned(base) if case.bias else base
        self.W, self.x = base.weight.detach().clone(), torch.randn(3, case.n_in, dtype=case.dtype)
        self.A, self.B = values((case.rank, case.n_in)), values((case.n_out, case.rank))
        self.cls, self.case, self.what = cls, case, case.text
        close_enough = 1e-5 if case.dtype == torch.float32 else 2e-2  # bfloat16 has 8 bits, and each step rounds
        self.near: dict[str, Any] = dict(rtol=close_enough, atol=close_enough)

    def after(self, *steps) -> list[dict]:
        """What there is before, and after each step: a function of the layer, or a (s, more, merged) of ``follow``."""
        case = self.case
        said = layers.follow(
            self.cls, copy.deepcopy(self.base), case.rank, case.alpha, self.x, self.A, self.B, list(steps)
        )
        shaped(said, case)
        return said["left"]


def merges(cls: Callable, merge: Callable, case: Case) -> None:
    layer = _Layer(cls, case)
    before, after = layer.after(merge)
    _done(after)
    _merged(layer, after, unless_wrong(before["y"]), "after merge")


def unmerges(cls: Callable, merge: Callable, unmerge: Callable, case: Case) -> None:
    layer = _Layer(cls, case)
    scale = case.alpha / case.rank  # W becomes what a right merge leaves, whatever the student's own did
    left = layer.after(merge, (scale, 0.0, True), unmerge, merge, (scale, 0.5, True), unmerge)
    before, first, after, last = left[0], left[1], left[3], left[6]
    if isinstance(first["fault"], Wrong) and first["fault"].id == "not-written":
        raise first["fault"]
    _done(after)
    _apart(layer, after, layer.W, "after unmerge")
    close(unless_wrong(after["y"]), unless_wrong(before["y"]), f"{layer.what}: the output after unmerge", **layer.near)
    _done(last)
    _apart(layer, last, layer.W + 0.5, "after merge, a change of the merged weight by 0.5, and unmerge")
    if first["grown"] >= layer.W.numel():  # bytes: even with one for each number
        raise Wrong(
            "hidden-copy",
            f"{layer.what}: with merge come {first['grown']:,} bytes that stay: is a copy of W kept, or B A? "
            "unmerge can make B A anew from A and B",
        )


def refuses(cls: Callable, merge: Callable, unmerge: Callable, case: Case) -> None:
    layer = _Layer(cls, case)
    _, once, twice, apart, again = layer.after(merge, merge, unmerge, unmerge)
    _done(once)
    refused(twice["fault"], why=f"{layer.what}: merging twice adds the adapter twice")
    _merged(layer, twice, unless_wrong(once["y"]), "after a second merge, which is refused")
    _done(apart)
    refused(again["fault"], why=f"{layer.what}: unmerging what is not merged takes the adapter away from W")
    _apart(layer, again, layer.W, "after a second unmerge, which is refused")


def refused(fault: Wrong | None, why: str) -> None:
    """``fault``, what came of a call, must come from a ValueError."""
    if fault is None:
        raise Wrong("not-refused", f"{why}; a ValueError is asked for, and nothing is raised")
    if not isinstance(fault.__cause__, ValueError):
        raise fault


def _done(left: dict) -> None:
    """The step raised nothing."""
    if isinstance(fault := left["fault"], Wrong):
        watching = {"leaf": "Autograd is watching; work under torch.no_grad()"}
        raise explained(fault, watching, "autograd-watches") from fault.__cause__


def _merged(layer: _Layer, left: dict, y: Tensor, which: str) -> None:
    case, what, W, BA = layer.case, layer.what, layer.W, layer.B @ layer.A
    base, scale = nn.Linear(case.n_in, case.n_out, bias=False, dtype=case.dtype), case.alpha / case.rank
    base.weight.data = W.clone()
    peft = peft_layer(base, case, layer.A, layer.B)
    peft.merge()
    wrong = given(scales(case.rank, case.alpha), lambda other: W + other * BA)
    wrong |= {"no-base": ("the base's weight is lost: W' = W + s B A", scale * BA),
              "not-merged": ("it is still W: nothing is merged", W),
              "subtracted": ("the adapter is taken away from W, not added", W - scale * BA),
              "base-scaled": ("W is scaled as well", scale * (W + BA)),
              "merged-twice": ("the adapter is in it twice; refuse before you write", W + 2 * scale * BA)}  # fmt: skip
    close(left["weight"], peft.base_layer.weight, f"{what}: the base's weight {which}", wrong=wrong, **layer.near)
    _same_type(layer, left, which)
    if left["trained"]:
        raise Wrong("not-frozen", f"{what}: {which}, base.weight takes a gradient; work under torch.no_grad()")
    _flag(layer, left, True, which)
    if not same(left["adapter"], [layer.A, layer.B]):
        raise Wrong("adapter-changed", f"{what}: {which}, the adapter is changed; unmerge needs it as it was")
    close(unless_wrong(left["y"]), y, f"{what}: the output {which}", **layer.near)


def _apart(layer: _Layer, left: dict, weight: Tensor, which: str) -> None:
    case, BA, right = layer.case, layer.B @ layer.A, layer.case.alpha / layer.case.rank
    wrong = {"still-merged": ("it is still merged: nothing is taken away", weight + right * BA),
             "added-again": ("the adapter is added once more, not taken away", weight + 2 * right * BA)}  # fmt: skip
    wrong |= given(scales(case.rank, case.alpha), lambda scale: weight + (right - scale) * BA)
    if not same(weight, layer.W):
        wrong["old-copy"] = (
            "an old copy of W comes back; what was added since is lost, and a copy costs what LoRA saves", layer.W
        )  # fmt: skip
    close(left["weight"], weight, f"{layer.what}: the base's weight {which}", wrong=wrong, **layer.near)
    _same_type(layer, left, which)
    _flag(layer, left, False, which)


def _same_type(layer: _Layer, left: dict, which: str) -> None:
    if left["weight"].dtype != layer.W.dtype:
        raise Wrong(
            "base-of-another-type",
            f"{layer.what}: {which}, base.weight is {str(left['weight'].dtype)[6:]}; the base keeps the type it has",
        )


def _flag(layer: _Layer, left: dict, merged: bool, which: str) -> None:
    if left["merged"] is not merged:
        said = f"layer.merged is {show(left['merged'])}; it must be {merged}: forward asks it"
        raise Wrong("flag", f"{layer.what}: {which}, {said}")
