"""Judging the run of lab 14: what was predicted and measured of the plans' steps, beside what ``predict`` says here.

    row(predicted, measured, (name, plan), dry)      one plan's step, bucket by bucket

On a CPU a small copy is trained, and readings are right to the byte, but for a hundredth of the peak. On a GPU the peak
of the whole model is looked at alone, to 5%. That a number was read, and not predicted twice, cannot be seen here.
"""

from __future__ import annotations

from collections.abc import Callable

from minigpt.checks.capstone import rules, small
from minigpt.checks.closing import knows
from minigpt.checks.comparing import close
from minigpt.checks.probes import models, planning
from minigpt.checks.verdict import Wrong
from minigpt.memory.predicted.step import predict

knows(__name__)
MODEL, STATIC = "llama-3.2-3b", ("weights", "gradients", "optimizer", "activations")


def row(predicted, measured, case: tuple[str, Callable], dry: bool) -> None:
    name, answer = case
    plan = rules.plan_of(planning.said(answer))
    right = predict(small.MODEL, small.plan(plan)) if dry else predict(MODEL, plan)
    for which, table, slack in (("predicted", predicted, 0.0), ("measured", measured, 0.01 if dry else 0.05)):
        if not isinstance(table, dict) or name not in table:
            raise Wrong("not-run", f"there is nothing {which} of the {name} yet: run all cells of part 4, in order")
        read = models.memory(table[name])
        for bucket in STATIC if dry else ():
            close(read[bucket], getattr(right.ledger, bucket), f"{name}, {bucket}, {which}", rtol=0, atol=0)
        close(read["peak"], right.peak.total, f"{name}, peak, {which}", rtol=slack, atol=0)
