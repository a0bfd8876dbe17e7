"""Judging a linear layer whose weight is gathered when it is needed, an autograd.Function of a student's.

passes(layer, Layer(out, into, ranks))     y, the gradient of x, and each rank's shard of the mean of the weight's
frees(layer, Layer(out, into, ranks))      gathered in forward, freed, gathered again in backward, freed
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from minigpt.checks.closing import knows
from minigpt.checks.comparing import close
from minigpt.checks.probes import sharding as probes
from minigpt.checks.sharding.dealing import joined
from minigpt.checks.verdict import Wrong

knows(__name__)


class Layer(NamedTuple):
    """A weight (out, into), and an x of (*rows, into) on each rank."""

    out: int
    into: int
    ranks: int
    rows: tuple[int, ...] = (2, 3)
    dtype: torch.dtype = torch.float32
    seed: int = 0

    @property
    def text(self) -> str:
        return f"a weight of ({self.out}, {self.into}), {self.ranks} ranks"

    def weight(self) -> Tensor:
        return self._draw((self.out, self.into), 7)

    def inputs(self) -> list[Tensor]:
        return [self._draw((*self.rows, self.into), 20 + rank) for rank in range(self.ranks)]

    def pulls(self) -> list[Tensor]:
        """The gradient of each rank's y."""
        return [self._draw((*self.rows, self.out), 60 + rank) for rank in range(self.ranks)]

    def shards(self) -> list[Tensor]:
        return [part.clone() for part in joined([self.weight()], self.ranks).chunk(self.ranks)]

    def _draw(self, shape, seed: int) -> Tensor:
        return torch.randn(shape, generator=torch.Generator().manual_seed(100 * self.seed + seed)).to(self.dtype)


def passes(layer, case: Layer) -> None:
    told, W = _told(layer, case), case.weight()
    tolerance = {torch.float32: dict(rtol=1e-4, atol=1e-5)}.get(case.dtype, dict(rtol=3e-2, atol=6e-2))
    gradients = [pull.flatten(0, -2).T @ x.flatten(0, -2) for pull, x in zip(case.pulls(), case.inputs())]
    mean = joined([torch.stack(gradients).sum(0) / case.ranks], case.ranks).chunk(case.ranks)
    for rank, (said, x, pull) in enumerate(zip(told, case.inputs(), case.pulls())):
        where = f"{case.text}, rank {rank}"
        _tensor(said["y"], x @ W.T, f"{where}: y", case, tolerance)
        if said["graph"] is not True:
            raise Wrong("no-graph", f"{where}: y has no graph behind it")
        _tensor(said["x"], pull @ W, f"{where}: the gradient of x", case, tolerance)
        own = joined([gradients[rank]], case.ranks).chunk(case.ranks)
        hints = {
            "sum-not-mean": ("it is the sum over the ranks; the mean is asked for", mean[rank] * case.ranks),
            "two-ranks": ("it is the sum divided by 2; there are more ranks", mean[rank] * case.ranks / 2),
            "own-gradient": ("it is of this rank's own gradient; the mean over all is asked for", own[rank]),
            "other-part": ("it is another rank's part", mean[(rank + 1) % case.ranks]),
        }
        _tensor(said["shard"], mean[rank], f"{where}: the gradient of the shard", case, tolerance, hints)


def frees(layer, case: Layer) -> None:
    for rank, said in enumerate(_told(layer, case)):
        where, forward = f"{case.text}, rank {rank}", said["calls"][: said["forward"]]
        if forward.count("all_gather") != 1 or "reduce_scatter" in forward:
            raise Wrong("other-traffic", f"{where}: forward asks for {_list(forward)}; one all_gather is asked for")
        if said["alive"]:
            raise Wrong("weights-kept", f"{where}: after forward {sum(said['alive']):,} bytes of the weight are "
                        "still there: something keeps the weight, or a view of it")  # fmt: skip
        backward = said["calls"][said["forward"] :]
        if "all_gather" not in backward:
            raise Wrong(
                "not-gathered-again", f"{where}: backward gathers nothing, so a copy of the weight was kept for it"
            )
        if sorted(backward) != ["all_gather", "reduce_scatter"]:
            raise Wrong("other-traffic", f"{where}: backward asks for {_list(backward)}; one all_gather and one "
                        "reduce_scatter will do")  # fmt: skip
        if said["after"]:
            raise Wrong("weights-kept-after", f"{where}: after backward {sum(said['after']):,} bytes of weights "
                        "are still there")  # fmt: skip


def _list(calls: list[str]) -> str:
    return ", ".join(calls) or "nothing"


def _told(layer, case: Layer) -> list[dict]:
    try:
        told = probes.passed(layer, case.shards(), (case.out, case.into), case.inputs(), case.pulls())
    except Wrong as verdict:
        raise Wrong(verdict.id, f"{case.text}: {verdict}") from verdict.__cause__
    if not isinstance(told, list) or len(told) != case.ranks:
        raise Wrong("broken-reply", f"{case.text}: not every rank is told of")
    return told


def _tensor(mine, right: Tensor, what: str, case: Layer, tolerance: dict, hints: dict | None = None) -> None:
    if isinstance(mine, Tensor) and mine.dtype != case.dtype:
        raise Wrong("other-dtype", f"{what}: it is {mine.dtype}; {case.dtype} is asked for")
    close(mine, right, what, wrong=hints, **tolerance)
