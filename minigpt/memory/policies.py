"""Which checkpointing policy makes a step fit at the least cost in time, and what it costs, in words.

    time = FLOPs run again / the card's speed + 2 x bytes of inputs that leave the card / the bus's speed

at the best speeds that the card has (``gpus``). By time the policies stand in one order, whatever the model:

    selective    no product again: what is left, norms and activation functions, is not in FLOPs
    every        of n blocks ceil(n / every_n_layers) run again: the fewer, the cheaper
    full         every block again, less its end
    offload      as full, and the bus
    sqrt         more of every block than full; beside offload it can be either way round

By bytes offload is the least. Full can be less by one block's input, where the first block is the fullest: its input
may be the embedding's output, which stays on the card and comes back as a second copy.

Left out: "none", which is what the others take from, and "reentrant", torch's older kind of "full", which computes more
and keeps the same to within one block's input.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Any

from minigpt.memory.buckets import StepMemory
from minigpt.memory.gpus import GPUS
from minigpt.memory.plan import TrainingPlan
from minigpt.memory.predicted.flops import Flops
from minigpt.memory.segments import segments
from minigpt.memory.units import readable

Fields = dict[str, Any]  # of a plan


def computes_in(plan: TrainingPlan) -> str:
    """torch's name of the format in which the forward multiplies."""
    half = plan.regime.weights == 2 or plan.autocast or plan.method == "qlora"
    return plan.regime.autocast or (plan.regime.half if half else "float32")


def seconds(work: Flops, plan: TrainingPlan) -> float:
    """What checkpointing adds to the passes of ``work`` on the plan's card, at the card's best speeds."""
    gpu = GPUS[plan.card or ""]
    return work.again / gpu.speed(computes_in(plan)) + 2 * work.moved / gpu.bus


class Policies:
    """The policies beside what else ``plan`` says; ``priced`` gives memory and FLOPs with a policy's fields.

    ``refused`` are those without a price that were asked for; "offload" is never refused.
    """

    def __init__(
        self, priced: Callable[[Fields], tuple[StepMemory, Flops]], plan: TrainingPlan, n_layer: int, room: int
    ) -> None:
        self.priced, self.plan, self.n_layer, self.room = priced, plan, n_layer, room
        self.refused: list[str] = []
        self.offload, self.selective, self.full, self.sqrt = map(self._named, ("offload", "selective", "full", "sqrt"))

    def least(self) -> Fields:
        """The policy that keeps least; it is asked for "full" only where that could fit and "offload" does not."""
        step, work = self.priced(self.offload)
        one_input = work.moved // self.n_layer // min(self.plan.accumulation, 2)
        near = self.room < step.peak.total <= self.room + one_input
        return self.full if near and self._fits(self.full) else self.offload

    def cheapest(self) -> Fields:
        """The policy that takes the least time of those whose peak is at most ``room``. ``least`` must be one.

        "every" is bisected, as though each checkpointed block took from the peak; one that fits narrowly may be missed.
        """
        if self._fits(self.selective):
            return self.selective
        if self._fits(self.full):
            some = self._one_in()
            fewest = bisect_left(some, True, key=lambda policy: not self._fits(policy))
            return some[fewest - 1] if fewest else self.full
        left = [self.offload, self.sqrt] if self._fits(self.sqrt) else [self.offload]
        return min(left, key=lambda policy: seconds(self.priced(policy)[1], self.plan))

    def _fits(self, policy: Fields) -> bool:
        try:
            return self.priced(policy)[0].peak.total <= self.room
        except ValueError:
            self.refused.append(f"checkpointing={policy['checkpointing']}")
            return False

    def _named(self, name: str) -> Fields:
        return dict(checkpointing=name, use_cache=False) if self.plan.use_cache else dict(checkpointing=name)

    def _one_in(self) -> list[Fields]:
        """ "every", from half of the blocks to one: for each number of blocks the smallest step between them."""
        steps = {-(-self.n_layer // n): n for n in range(self.n_layer, 1, -1)}
        return [{**self._named("every"), "every_n_layers": n} for n in sorted(steps.values())]


def words(plan: TrainingPlan, work: Flops, before: int, n_layer: int) -> str:
    """What ``plan``'s policy costs: its ``work``, and the FLOPs ``before`` of equally many passes."""
    more, runs = work.total / before - 1, segments(plan.checkpointing, n_layer, plan.every_n_layers)
    again = {
        "selective": "norms and activation functions again",
        "every": f"the forward of {len(runs)} of {n_layer} blocks again",
        "sqrt": f"every block's forward again, {max(map(len, runs), default=0)} blocks at a time",
    }.get(plan.checkpointing, "every block's forward again")
    text = f"{again}: {more:+.0%} FLOPs" if round(100 * more) else f"{again}: no more FLOPs"
    if work.moved:
        moved = work.moved // min(plan.accumulation, 2) * plan.accumulation
        text += f"; {readable(moved)} to the CPU and back, {2 * moved / GPUS[plan.card or ''].bus:.2g} s of PCIe"
    return text
