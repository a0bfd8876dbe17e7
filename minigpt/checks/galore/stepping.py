"""Judging the GaLore step that a student wrote: W step by step, when P changes, and what the state holds.

    follows(galore_step, run)      W after each step, with the first projection for ever
    renews(galore_step, run)       P every gap steps, from that step's gradient; and W, as m and v stay
    holds(galore_step, run)        P, m and v, and no byte more

The signs of directions are free, and m, which stays, meets them when P changes. So the truth is made of the student's
own P, once its directions are judged: the step written a second time, in float64 (``updates``). It equals
minigpt.optim.GaLoreAdamW and what galore-torch did (tests/test_checks_galore.py). Gradients do not depend on W.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from minigpt.checks.calling import explained
from minigpt.checks.closing import knows
from minigpt.checks.comparing import close, same, values
from minigpt.checks.galore.projecting import HINTS, Gradient, plain_tensor, spans
from minigpt.checks.naming import Hints
from minigpt.checks.probes import steps
from minigpt.checks.verdict import Wrong

knows(__name__)


class Run(NamedTuple):
    """Steps on one matrix, and their options."""

    shape: tuple[int, int]
    rank: int = 2
    gap: int = 100
    steps: int = 4
    lr: float = 0.1
    scale: float = 0.25
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-6
    seed: int = 0

    @property
    def text(self) -> str:
        return f"W of {self.shape}, rank {self.rank}, gap {self.gap}"

    @property
    def options(self) -> dict:
        return dict(lr=self.lr, rank=self.rank, gap=self.gap, scale=self.scale, betas=self.betas, eps=self.eps)

    def gradients(self) -> list[Tensor]:
        """One float32 gradient for each step, small enough for eps to count."""
        return [1e-4 * Gradient(self.shape, self.rank, seed=100 * self.seed + i).tensor() for i in range(self.steps)]

    def weight(self) -> Tensor:
        return torch.randn(self.shape, generator=torch.Generator().manual_seed(self.seed))


def follows(step: Callable, run: Run) -> None:
    weights, projections, _ = _taken(step, run)
    _weights(weights, projections, run)


def renews(step: Callable, run: Run) -> None:
    weights, projections, _ = _taken(step, run)
    _projections(projections, run)
    _weights(weights, projections, run)
    _apart(step, run)


def _apart(step: Callable, run: Run) -> None:
    """Two matrices of one shape, each with a state of its own, step by step in turn."""
    both = [run, run._replace(seed=run.seed + 7)]
    given = [(one.weight(), one.gradients()) for one in both]
    for each, told in zip(both, steps.taken_in_turn(step, given, run.options)):
        try:
            weights, projections, _ = _read(told, each)
            _projections(projections, each)
            _weights(weights, projections, each)
        except Wrong as wrong:
            said = "two such matrices, a step of each in turn: what belongs to one must be in its own state alone"
            raise Wrong("remembers", f"{run.text}: {said}. {wrong}") from None


def holds(step: Callable, run: Run) -> None:
    _, _, state = _taken(step, run)
    short, long = sorted(run.shape)
    tensors = [leaf for leaf in tree_leaves(state) if isinstance(leaf, Tensor)]
    storages = {storage.data_ptr(): storage.nbytes() for storage in (leaf.untyped_storage() for leaf in tensors)}
    kept = sum(storages.values())
    needed = 4 * (short * run.rank + 2 * long * run.rank)
    if kept != needed:
        which = ", ".join(str(tuple(leaf.shape)) for leaf in tensors)
        raise Wrong(
            "more-state" if kept > needed else "less-state",
            f"{run.text}: state keeps {kept:,} bytes alive, P, m and v have {needed:,}; its tensors: {which}",
        )


def _taken(step: Callable, run: Run) -> tuple[list[Tensor], list[Tensor], dict]:
    """W and P after each step, and the state after the last."""
    return _read(steps.taken(step, run.weight(), run.gradients(), run.options), run)


def _read(told: list, run: Run) -> tuple[list[Tensor], list[Tensor], dict]:
    weights, projections = [run.weight()], []
    state: dict = {}
    for i, (before, said) in enumerate(zip(run.gradients(), told)):
        what = f"{run.text}, step {i + 1}"
        if isinstance(said, Wrong):
            raise explained(said, HINTS) from said.__cause__
        W, state = said["W"], said["state"]
        if not same(said["G"], before):
            raise Wrong("changes-gradient", f"{what}: the gradient is changed; it must stay as it is")
        if same(W, weights[-1]) and isinstance(said["given"], Tensor):
            raise Wrong("not-in-place", f"{what}: W is as it was, and another tensor is returned; change W in place")
        for name in ("P", "m", "v"):
            if name not in state:
                raise Wrong("missing", f'{what}: state["{name}"] is missing in the dictionary that was handed over')
            plain_tensor(state[name], f'{what}: state["{name}"]')
        _shapes(state, run, what)
        weights.append(W)
        projections.append(state["P"])
    if len(told) != run.steps:
        raise Wrong("broken-reply", f"{run.text}: {len(told)} steps are told of")
    return weights[1:], projections, state


def _shapes(state: dict, run: Run, what: str) -> None:
    (m, n), r = run.shape, run.rank
    low = (m, r) if m >= n else (r, n)
    for name in ("m", "v"):
        shape = tuple(state[name].shape)
        if shape == run.shape != low:
            raise Wrong(
                "full-moments", f"{what}: {name} has W's shape; Adam runs on R, and {name} has R's shape, {low}"
            )
        if shape != low:
            raise Wrong("wrong-shape", f"{what}: {name} has the shape {shape}; it has R's, {low}")
    if tuple(state["P"].shape) != ((r, n) if m >= n else (m, r)):
        raise Wrong("wrong-shape", f"{what}: P has the shape {tuple(state['P'].shape)}")


def _projections(projections: list[Tensor], run: Run) -> None:
    """P after each step is of the gradient that it should be of."""
    gradients = run.gradients()
    for i, P in enumerate(projections):
        expected, what = i - i % run.gap, f"{run.text}: P after step {i + 1}"
        found = next((j for j in range(i, -1, -1) if _is_of(P, gradients[j], run.rank)), None)
        if found is None or found == expected:
            spans(P, gradients[expected], run.rank, what)
            continue
        of = f"it has the directions of gradient {found + 1}, and should have those of gradient {expected + 1}"
        if found < expected:
            raise Wrong("not-renewed", f"{what}: {of}: steps 1, 1 + gap, 1 + 2 gap ... make a new one")
        raise Wrong(
            "renewed-early", f"{what}: {of}: a new one comes every gap steps, in steps 1, 1 + gap, 1 + 2 gap ..."
        )


def _is_of(P: Tensor, G: Tensor, rank: int) -> bool:
    try:
        spans(P, G, rank, "P")
    except Wrong:
        return False
    return True


def _weights(weights: list[Tensor], projections: list[Tensor], run: Run) -> None:
    gradients, start = run.gradients(), run.weight().double()
    for i, W in enumerate(weights):
        done = gradients[: i + 1], projections[: i + 1], run
        wrong = {id: (sentence, -sum(updates(*done, **way))) for id, (sentence, way) in MISTAKES.items()}
        wrong["sign"] = ("W moves with the gradient; it has to move against it", sum(updates(*done)))
        what = f"{run.text}: the change of W after step {i + 1}"
        close(values(W, what) - start, -sum(updates(*done)), what, rtol=1e-3, atol=1e-6, wrong=wrong)


MISTAKES: Hints = {  # a sentence, and what is done otherwise in ``updates``
    "no-scale": ("scale is missing", dict(scale=False)),
    "no-bias-correction": ("m and v begin at zeros, and nothing corrects that: sqrt(1 - b2^t) / (1 - b1^t)",
                           dict(correction=False)),
    "no-root-correction": ("the correction of v is missing, sqrt(1 - b2^t)", dict(correction="first")),
    "no-first-correction": ("the correction of m is missing, 1 / (1 - b1^t)", dict(correction="second")),
    "square-correction": ("v's correction stands without its root: sqrt(1 - b2^t)", dict(correction="square")),
    "one-ahead": ("the correction is that of t + 1; t is 1 in the first step", dict(correction="ahead")),
    "square-of-m": ("v is made of the square of m; it is one of R's", dict(square="m")),
    "eps-after": ("eps is added to the corrected root, as in torch; here it is sqrt(v) + eps, and the correction comes "
                  "after it", dict(eps="after")),
    "eps-in-root": ("eps stands in the root; it is sqrt(v) + eps", dict(eps="inside")),
    "no-eps": ("eps is missing", dict(eps="none")),
    "no-moments": ("R or m goes back as it is; Adam's direction, m / (sqrt(v) + eps), is asked for",
                   dict(direction="gradient")),
    "no-root": ("m is divided by v and not by its root", dict(direction="no root")),
    "betas-swapped": ("the two betas are interchanged", dict(swapped=True)),
    "moments-reset": ("m and v begin again at zeros with the new P; they stay", dict(renewal="zeros")),
    "step-reset": ("m, v and the step count begin again with the new P; they stay", dict(renewal="all")),
    "moments-rotated": ("m is turned into the new directions; it stays as it is", dict(renewal="rotated")),
}  # fmt: skip


def updates(
    gradients: list[Tensor], projections: list[Tensor], run: Run, *, scale=True, correction: bool | str = True,
    eps: str = "", direction: str = "", swapped=False, renewal: str = "", square: str = "",
) -> list[Tensor]:  # fmt: skip
    """What each step takes off W, (m, n) float64, with P of each step given; the rest are mistakes."""
    tall, taken = run.shape[0] >= run.shape[1], []
    b1, b2 = run.betas[::-1] if swapped else run.betas
    m = v = torch.zeros((), dtype=torch.float64)
    t, before = 0, None
    for G, P in zip(gradients, (P.double() for P in projections)):
        if before is not None and not P.equal(before) and renewal:
            if renewal == "rotated":
                m = m @ before @ P.T if tall else P.T @ before @ m
            else:
                m, v, t = 0 * m, 0 * v, 0 if renewal == "all" else t
        before, t = P, t + 1
        R = G.double() @ P.T if tall else P.T @ G.double()
        m = b1 * m + (1 - b1) * R
        v = b2 * v + (1 - b2) * (m if square else R) ** 2
        first, second = 1 / (1 - b1**t), math.sqrt(1 - b2**t)
        ahead = math.sqrt(1 - b2 ** (t + 1)) / (1 - b1 ** (t + 1))
        factors = {True: first * second, False: 1.0, "first": first, "second": second, "square": first * second**2}
        factor = (factors | {"ahead": ahead})[correction]
        small = {"": run.eps, "after": run.eps * second, "inside": 0.0, "none": 0.0}[eps]
        root = (v + run.eps).sqrt() if eps == "inside" else v.sqrt() + small
        D = {"": factor * m / root, "gradient": R, "no root": factor * m / (v + run.eps)}[direction]
        D = D * run.lr * (run.scale if scale else 1.0)
        taken.append(D @ P if tall else P @ D)
    return taken
