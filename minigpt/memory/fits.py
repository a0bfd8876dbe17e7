"""fits(model, plan, card): whether a training step fits a card, how much would, and what makes it fit.

    room = vram - CONTEXT            fits: a training's requests find their place in it, from loading to the second step

What decides is what the allocator reserves, ``predicted.reserved``. A full device gets unused blocks back before a
request fails, so a training may fit that would reserve more than there is.

A predicted verdict is ``sure`` where the card has room for MARGIN more than is predicted to be reserved, or none for
the blocks in use: of 41 published steps on a T4 the worst reserved 6.0% more than predicted, and blocks in use are
within 0.3%. What is measured is known by its tensors alone; for it room is what is left where the allocator reserves
RESERVED more than those: 4 to 42%, with 12% in the middle, in the same steps.

With several ranks the card is one rank's, and no step that fits is sure: NCCL's buffers lie beside torch's allocator,
and their size depends on how the cards are connected.

Left out: what other programs hold on the card.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from minigpt.memory.buckets import StepMemory
from minigpt.memory.families.architecture import Architecture
from minigpt.memory.gpus import CONTEXT, GPUS, find_gpu
from minigpt.memory.plan import TrainingPlan
from minigpt.memory.policies import computes_in
from minigpt.memory.predicted.reserved import reserve
from minigpt.memory.room import beyond_context
from minigpt.memory.search import Change, Search
from minigpt.memory.units import readable

MARGIN = 0.06  # by how much a published step reserved more than predicted, at most
RESERVED = (0.04, 0.12, 0.42)  # least, middle and most of the published steps, as a share of the tensors


@dataclass(frozen=True)
class Verdict:
    """Whether a step fits a card. Bytes; ``needs`` is what is reserved at most, ``room`` what may be.

    Of a measured step, ``needs`` is the peak of its tensors, and ``room`` what tensors may take.

    ``longest_sequence`` and ``largest_batch``: each with the rest of the plan as it is; None: not even one.
    ``changes``: the cheapest that make it fit, none if it does. ``not_priced``: changes that predict refuses.
    ``searched``: whether these were looked for: not for a measured step.
    """

    card: str
    fits: bool
    sure: bool
    needs: int
    room: int
    bf16_native: bool
    searched: bool = False
    longest_sequence: int | None = None
    largest_batch: int | None = None
    changes: tuple[Change, ...] = ()
    not_priced: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    step: StepMemory | None = field(default=None, repr=False)

    @property
    def over(self) -> int:
        """Bytes too many; negative: bytes to spare."""
        return self.needs - self.room

    @property
    def tensors_may_take(self) -> int:
        """Bytes of tensors in the room: where what is reserved is predicted, as many of it as in this step."""
        return int(self.room * self.step.peak.total / self.needs) if self.predicted and self.step else self.room

    @property
    def share(self) -> float:
        """What is needed, as a share of the room."""
        return self.needs / self.room

    def as_dict(self) -> dict:
        """For JSON: ints are bytes, the names are this record's."""
        names = ("card", "fits", "sure", "needs", "room", "over", "share", "bf16_native", "longest_sequence",
                 "largest_batch", "not_priced", "warnings")  # fmt: skip
        record = {name: getattr(self, name) for name in names}
        changes = [{"fields": c.fields, "saves": c.saves, "costs": c.costs} for c in self.changes]
        assumed = (
            {"context": CONTEXT, "margin": MARGIN} if self.predicted else {"context": CONTEXT, "reserved": RESERVED}
        )
        return {**record, "changes": changes, "assumed": assumed}

    @property
    def predicted(self) -> bool:
        """Whether what is reserved was predicted, and not assumed from the tensors."""
        return self.step is not None and self.step.card is not None

    def __str__(self) -> str:
        word = "fits" if self.fits else "does not fit"
        spare = f"{readable(abs(self.over))} {'to spare' if self.fits else 'too many'}"
        if self.fits and self.over > 0:
            spare = f"{readable(self.over)} too many, but unused blocks go back to the card in time"
        lines = [f"{self.card}: {word}: {readable(self.needs)} of {readable(self.room)} ({self.share:.0%}), {spare}"]
        lines += self._reserved() if self.predicted else self._assumed()
        lines.append(f"bfloat16: {'native' if self.bf16_native else 'not native on this card'}")
        if self.searched:
            length, batch = ("none" if n is None else f"{n:,}" for n in (self.longest_sequence, self.largest_batch))
            lines.append(f"longest sequence: {length}; largest batch: {batch}")
        if self.searched and not self.fits:
            lines.append("what makes it fit, the cheapest first:" if self.changes else "no change makes it fit")
        lines += [f"  {change}" for change in self.changes]
        lines += [f"  not priced: {name}" for name in self.not_priced]
        return "\n".join([*lines, *(f"warning: {warning}" for warning in self.warnings)])

    def _reserved(self) -> list[str]:
        assert self.step is not None and self.step.card is not None
        used, unused = self.step.card.allocated, self.step.card.reserved - self.step.card.allocated
        lines = [
            f"so much the allocator reserves: {readable(used)} in use at most, {readable(unused)} more between blocks",
            f"assumed, not predicted: {readable(CONTEXT)} for CUDA's context",
        ]
        if not self.sure:
            lines.append(f"not sure: published steps reserved up to {MARGIN:.0%} more than predicted")
        return lines

    def _assumed(self) -> list[str]:
        least, middle, most = RESERVED
        lines = [
            f"assumed, not predicted: {readable(CONTEXT)} for CUDA's context, and an allocator that reserves "
            f"{middle:.0%} more than the tensors"
        ]
        return lines if self.sure else [*lines, f"not sure: published steps reserved {least:.0%} to {most:.0%} more"]


def fits(model, plan: TrainingPlan, card: str | None = None) -> Verdict:
    """Whether the step of ``model`` (anything ``Architecture.of`` reads) under ``plan`` fits ``card``, or the plan's.

    Raises ValueError without a card, for an unknown one, and for what ``predict`` refuses.
    """
    card = card or plan.card
    if card is None:
        raise ValueError(f"card is None; allowed: {', '.join(GPUS)}")
    architecture = Architecture.of(model)
    plan = replace(plan, card=find_gpu(card))
    search = Search(architecture, plan)
    verdict = judge(replace(search.step, card=reserve(architecture, plan)), plan, architecture)
    return replace(verdict, **_searched(search, verdict))


def _searched(search: Search, verdict: Verdict) -> dict[str, Any]:
    """What ``search`` finds, with as many of the room for tensors as in this step, or less, until it is reserved, too.

    Search asks the steps alone, many of them; what it comes to is gone through from loading on.
    """

    def runs(**fields) -> bool:
        return not reserve(search.architecture, replace(search.plan, **fields)).failed

    found = search.found(verdict.tensors_may_take)
    for asked, name in (("seq_len", "longest_sequence"), ("batch", "largest_batch")):
        most, least, percent = found[name] or 0, getattr(search.plan, asked) if verdict.fits else 0, 2
        while most > least and not runs(**{asked: most}):
            most, percent = most - max(1, percent * most // 100), 2 * percent
        found[name] = max(most, least) or None
    for share in (1.0, 0.9, 0.8):
        changes = found["changes"] if share == 1.0 else search.found(int(share * verdict.tensors_may_take))["changes"]
        found["changes"] = tuple(change for change in changes if runs(**change.fields))
        if found["changes"] or not changes:
            break
    return found


def judge(step: StepMemory, plan: TrainingPlan, architecture: Architecture | None = None) -> Verdict:
    """The verdict on a step, predicted or measured, for ``plan.card``; without what would fit instead.

    Raises ValueError for a plan without a card.
    """
    if plan.card is None:
        raise ValueError(f"card is None; allowed: {', '.join(GPUS)}")
    gpu, needs = GPUS[plan.card], step.peak.total
    least, room, most = (int(gpu.room / (1 + share)) for share in RESERVED)
    does = needs <= room
    sure = needs <= most if does else needs > least
    if step.card is not None:
        needs, room, does = step.card.reserved, gpu.room, not step.card.failed
        sure = needs * (1 + MARGIN) <= room if does else step.card.allocated > room
    warnings = [beyond_context(architecture, plan)] if architecture else []
    if plan.ranks > 1:
        sure = sure and not does
        warnings.append(f"each of {plan.ranks} ranks on a {plan.card} of its own; what NCCL takes there is not counted")
    if (half := computes_in(plan)) not in ("float32", *gpu.formats):
        warnings.append(f"{plan.card} has no {half}: it is emulated, slowly; precision fp16 is native")
        if plan.attention == "sdpa":  # torch's sdp_utils.cpp: no fused kernel takes bfloat16 below capability 8.0
            warnings.append(f"no fused attention there takes {half}: scores, as with attention='eager', come on top")
    return Verdict(
        plan.card, does, sure, needs, room, "bfloat16" in gpu.formats,
        warnings=tuple(filter(None, warnings)), step=step,
    )  # fmt: skip
