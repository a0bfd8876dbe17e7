"""Judging a plan by what it achieves, whatever its route: bytes in use, bytes reserved, and hours for an epoch.

    allocates(plan, told)     the blocks in use at most have room on the card
    reserves(plan, told)      what is reserved has room too, with MARGIN on top
    in_time(plan, told)       an epoch over all documents takes no longer than it may
    show(plan, told)          the same in words, for a plan that is being made; nothing is judged
    made(plan)                a plan in either form as a TrainingPlan

``plan`` is the student's function; ``told`` the lab's dictionary, a ``Situation``. What must not be cheated is asked
first (``rules``). What an engine refuses is answered in its own words.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

from minigpt.checks.capstone import rules
from minigpt.checks.capstone.situation import Situation
from minigpt.checks.closing import knows
from minigpt.checks.probes import planning as probed
from minigpt.checks.verdict import Wrong
from minigpt.memory.fits import MARGIN, fits
from minigpt.memory.gpus import GPUS
from minigpt.memory.plan import TrainingPlan
from minigpt.memory.predicted.reserved import reserve
from minigpt.memory.predicted.static import predict_static
from minigpt.memory.predicted.throughput import Seconds, float32_flops, step_seconds
from minigpt.memory.units import readable

knows(__name__, reserve, predict_static, step_seconds, fits)
MFU = 0.5  # as the lab says it
COPIES = {"model": 3, "shifted": 3, "chunked": 1}  # of the logits in float32, about, at the beginning of backward
LITTLE = 0.8  # of the room: persistent bytes above leave too little for a step


class Outcome(NamedTuple):
    """What a plan comes to. Bytes; ``at`` is the instant of the most bytes in use; ``step`` is one update."""

    allocated: int
    at: str
    reserved: int
    room: int
    loaded: int
    step: Seconds
    hours: float

    @property
    def with_margin(self) -> int:
        return int(self.reserved * (1 + MARGIN))


def outcome(plan: TrainingPlan, situation: Situation) -> Outcome:
    """Raises ValueError for what the engine refuses."""
    rows = situation.rows(plan)
    return _outcome(replace(plan, accumulation=min(plan.accumulation, 2)), plan.accumulation, situation.model, rows)


@lru_cache(maxsize=64)
def _outcome(plan: TrainingPlan, accumulation: int, model: str, rows: int) -> Outcome:
    """``plan`` has two passes at most: what a third one holds, the second held."""
    card, full = reserve(model, plan), replace(plan, accumulation=accumulation)
    step = step_seconds(model, full, mfu=MFU)
    updates = -(-rows // (plan.batch * accumulation))  # the last one counts as a full one
    room = GPUS[plan.card or ""].room
    return Outcome(
        card.allocated, card.allocated_at, card.reserved, room, card.loaded, step, updates * step.total / 3600
    )


def allocates(plan: Callable, told: dict[str, Any]) -> None:
    full, situation, found = _judged(plan, told)
    if found.allocated <= found.room:
        return
    what = f"{readable(found.allocated)} are in use at most, and the {full.card} has room for {readable(found.room)}"
    stays = predict_static(situation.model, full)
    if min(found.loaded, stays.weights) > found.room:
        raise Wrong("weights-too-large", f"{what}: the weights alone are {readable(stays.weights)}")
    if stays.total > LITTLE * found.room:
        raise Wrong("state-too-large", f"{what}: {readable(stays.total)} of it stay between two steps: weights, "
                    "gradients and the optimizer's state")  # fmt: skip
    at, words = f"{what}; the most is there at: {found.at}", rules.architecture(situation.model).vocab_size
    logits = COPIES.get(full.loss, 0) * 4 * full.tokens * words
    if "head" in found.at and logits > (found.allocated - stays.total) / 2:
        raise Wrong("logits-too-large", f"{at}. Each copy of the logits has {full.tokens:,} rows of {words:,} numbers")
    if found.at.endswith(": softmax"):
        raise Wrong("scores", f"{at}. No fused attention takes these tensors on this card, so every score is there")
    raise Wrong("activations-too-large", f"{at}. What the blocks keep for backward is too much")


def reserves(plan: Callable, told: dict[str, Any]) -> None:
    full, _, found = _judged(plan, told)
    if found.with_margin <= found.room:
        return
    what = f"{readable(found.reserved)} are reserved, {readable(found.with_margin)} with a margin of {MARGIN:.0%}"
    id = "no-margin" if found.reserved <= found.room else "does-not-fit"
    if id == "does-not-fit" and found.allocated <= found.room:
        id = "in-pieces"
        what += f", though no more than {readable(found.allocated)} are in use at once"
    raise Wrong(id, f"{what}; the {full.card} has room for {readable(found.room)}")


def in_time(plan: Callable, told: dict[str, Any]) -> None:
    full, situation, found = _judged(plan, told)
    if found.hours <= situation.hours:
        return
    what = f"an epoch takes {found.hours:.2f} hours, and {situation.hours:g} are allowed"
    ids, why = [], []
    tokens = sum(length * count for length, count in situation.lengths)
    computed = situation.rows(full) * full.seq_len
    if computed > 2 * tokens:
        ids.append("padding")
        why.append(f"{computed:,} tokens are computed, and the documents have {tokens:,}; the rest fills rows up")
    single = float32_flops(situation.model, full, found.step.work) / GPUS[full.card or ""].single / MFU
    if single > found.step.products / 2:
        ids.append("float32-products")
        why.append("most of a step are products of float32 numbers, which have no tensor cores there")
    if not ids:
        ids.append("too-slow")
        again, decoding = found.step.work.again / found.step.work.total, found.step.decoding / found.step.total
        why.append(f"{again:.0%} of the arithmetic is done again, and {decoding:.0%} of the time decodes weights")
    raise Wrong("+".join(ids), f"{what}: {'; and '.join(why)}")


def _judged(plan: Callable, told: dict[str, Any]) -> tuple[TrainingPlan, Situation, Outcome]:
    situation = Situation.of(told)
    full = rules.plan_of(probed.said(plan))
    rules.keeps(full, situation)
    try:
        return full, situation, outcome(full, situation)
    except ValueError as error:
        raise Wrong("refused", f"the engine refuses this plan: {error}") from None


def made(plan: TrainingPlan | dict) -> TrainingPlan:
    """A plan that was given in either form. Raises Wrong for a dictionary that is none."""
    return plan if isinstance(plan, TrainingPlan) else rules.plan_of(plan)


def show(plan: TrainingPlan | dict, told: dict[str, Any]) -> None:
    """Print what a plan achieves, or what stands against it. Takes a second or two."""
    situation = Situation.of(told)
    try:
        full = made(plan)
        rules.keeps(full, situation)
        found = outcome(full, situation)
    except (Wrong, ValueError) as error:
        print(f"does not count: {error}")
        return
    for name, nbytes, mark in (
        ("in use at most", found.allocated, f"   at: {found.at}"),
        ("reserved", found.reserved, f"   with {MARGIN:.0%} more {readable(found.with_margin)}"),
    ):
        print(f"{name:16}{readable(nbytes):>9} of {readable(found.room)}{mark}")
    rows, width = situation.rows(full), full.batch * full.accumulation
    mean, updates = situation.documents_of(full), situation.updates(full)
    print(f"{'an epoch':16}{found.hours:7.2f} h of {situation.hours:g} h   {rows:,} rows of {full.seq_len:,} tokens")
    print(f"{'':16}{updates:,} updates of {width} rows, {mean:.1f} documents on average")
