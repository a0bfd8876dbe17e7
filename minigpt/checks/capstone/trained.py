"""Judging the run of lab 14: what was predicted and measured of the plans' steps, beside what ``predict`` says here.

    row(predicted, measured, (name, plan))      one plan's step, bucket by bucket

On a CPU a small copy is trained, and readings are right to the byte, but for a hundredth of the peak. On a GPU the peak
of the whole model is looked at alone, to 5%. That a number was read, and not predicted twice, cannot be seen here.
"""

from __future__ import annotations

from collections.abc import Callable

from minigpt.checks.capstone import rules, small
from minigpt.checks.capstone.targets import FIRST
from minigpt.checks.closing import knows
from minigpt.checks.comparing import close
from minigpt.checks.probes import models, planning
from minigpt.checks.verdict import Wrong
from minigpt.memory.predicted.step import predict

knows(__name__)
LARGEST_COPY = 10**9  # bytes at the peak, of a small copy
STATIC = ("weights", "gradients", "optimizer", "activations")


def row(predicted, measured, case: tuple[str, Callable]) -> None:
    name, answer = case
    plan, said = rules.plan_of(planning.said(answer)), {}
    for which, table in (("predicted", predicted), ("measured", measured)):
        if not isinstance(table, dict) or name not in table:
            raise Wrong("not-run", f"there is nothing {which} of the {name} yet: run all cells of part 4, in order")
        said[which] = models.memory(table[name])
    dry = said["measured"]["peak"] < LARGEST_COPY
    right = predict(small.MODEL, small.plan(plan)) if dry else predict(FIRST["model"], small.whole(plan))
    for which, read in said.items():
        slack = 0.0 if which == "predicted" else 0.01 if dry else 0.05
        for bucket in STATIC if dry else ():
            close(read[bucket], getattr(right.ledger, bucket), f"{name}, {bucket}, {which}", rtol=0, atol=0)
        close(read["peak"], right.peak.total, f"{name}, peak, {which}", rtol=slack, atol=0)
