"""fits(model, plan, card): whether a training step fits a card, how much would, and what makes it fit.

    room = (vram - CONTEXT) / (1 + RESERVED)        fits: the predicted peak is at most room

``predict`` counts the bytes of tensors. Two things more lie on a card, and are assumed until they are predicted:

    CONTEXT   CUDA's context and the kernels: 141 MiB on a T4 (tests/readings/published.csv), 501 MiB on an A100
    RESERVED  what the allocator holds above the tensors, unused between its blocks: 4 to 42% of them, with 12% in the
              middle, in the 41 steps on a T4 of published.csv that give both numbers

A verdict is ``sure`` when it holds at both ends of that range. The allocator gives unused blocks back before it fails,
so a step inside the range may well run. Left out: what other programs hold on the card, and sharding.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from minigpt.memory.buckets import StepMemory
from minigpt.memory.families.architecture import Architecture
from minigpt.memory.gpus import GPUS, find_gpu
from minigpt.memory.plan import TrainingPlan
from minigpt.memory.policies import computes_in
from minigpt.memory.room import beyond_context
from minigpt.memory.search import Change, Search
from minigpt.memory.units import MIB, readable

CONTEXT = 512 * MIB
RESERVED = (0.04, 0.12, 0.42)  # least, middle and most of the published steps, as a share of the tensors


@dataclass(frozen=True)
class Verdict:
    """Whether a step fits a card. Bytes; ``needs`` is the predicted peak, ``room`` what tensors may take of the card.

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
    def share(self) -> float:
        """What is needed, as a share of the room."""
        return self.needs / self.room

    def as_dict(self) -> dict:
        """For JSON: ints are bytes, the names are this record's."""
        names = ("card", "fits", "sure", "needs", "room", "over", "share", "bf16_native", "longest_sequence",
                 "largest_batch", "not_priced", "warnings")  # fmt: skip
        record = {name: getattr(self, name) for name in names}
        changes = [{"fields": c.fields, "saves": c.saves, "costs": c.costs} for c in self.changes]
        return {**record, "changes": changes, "assumed": {"context": CONTEXT, "reserved": RESERVED}}

    def __str__(self) -> str:
        word = "fits" if self.fits else "does not fit"
        spare = f"{readable(abs(self.over))} {'to spare' if self.fits else 'too many'}"
        middle = f"{RESERVED[1]:.0%} more than the tensors"
        lines = [
            f"{self.card}: {word}: {readable(self.needs)} of {readable(self.room)} ({self.share:.0%}), {spare}",
            f"assumed, not predicted: {readable(CONTEXT)} for CUDA's context, and an allocator that reserves {middle}",
        ]
        if not self.sure:
            lines.append(f"not sure: published steps reserved {RESERVED[0]:.0%} to {RESERVED[2]:.0%} more")
        lines.append(f"bfloat16: {'native' if self.bf16_native else 'not native on this card'}")
        if self.searched:
            length, batch = ("none" if n is None else f"{n:,}" for n in (self.longest_sequence, self.largest_batch))
            lines.append(f"longest sequence: {length}; largest batch: {batch}")
        if self.searched and not self.fits:
            lines.append("what makes it fit, the cheapest first:" if self.changes else "no change makes it fit")
        lines += [f"  {change}" for change in self.changes]
        lines += [f"  not priced: {name}" for name in self.not_priced]
        return "\n".join([*lines, *(f"warning: {warning}" for warning in self.warnings)])


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
    verdict = judge(search.step, plan, architecture)
    return replace(verdict, **search.found(verdict.room))


def judge(step: StepMemory, plan: TrainingPlan, architecture: Architecture | None = None) -> Verdict:
    """The verdict on a step, predicted or measured, for ``plan.card``; without what would fit instead.

    Raises ValueError for a plan without a card.
    """
    if plan.card is None:
        raise ValueError(f"card is None; allowed: {', '.join(GPUS)}")
    gpu, needs = GPUS[plan.card], step.peak.total
    least, room, most = (int((gpu.vram - CONTEXT) / (1 + share)) for share in RESERVED)
    does = needs <= room
    warnings = [beyond_context(architecture, plan)] if architecture else []
    if (half := computes_in(plan)) not in ("float32", *gpu.formats):
        warnings.append(f"{plan.card} has no {half}: it is emulated, slowly; precision fp16 is native")
        if plan.attention == "sdpa":  # torch's sdp_utils.cpp: no fused kernel takes bfloat16 below capability 8.0
            warnings.append(f"no fused attention there takes {half}: scores, as with attention='eager', come on top")
    return Verdict(
        plan.card, does, needs <= most if does else needs > least, needs, room, "bfloat16" in gpu.formats,
        warnings=tuple(filter(None, warnings)), step=step,
    )  # fmt: skip
