"""On a card: a training from its beginning through the caching allocator, and what torch's counters would show.

Out of memory is decided by what the allocator *reserves*, and that depends on everything since the programme began: how
the model was loaded, the first step, in whose midst the optimizer's state is born, the steady ones, and an evaluation
between them. All of it runs on one tape (``training``), with what CUDA's kernels ask for beside (``predicted.cuda``),
and each storage asks the allocator for a block when it is born and gives it back when it dies, in the tape's own order.

New segments have addresses downwards (``allocator.device``), the one thing that no source tells.

With several ranks it is rank 0's card. A sharded model's shards are there when loading is done, as from a checkpoint of
shards. What the library that sends asks for by itself is beside torch's allocator: NCCL's buffers.

Left out: how 8-bit weights and mixtures in 4 bits are loaded, another library's allocations, the next batch made before
the last one dies, and the CUDA context, which is beside what is reserved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from minigpt.memory.buckets import Reserved
from minigpt.memory.engine.account import Account
from minigpt.memory.engine.graph import BORN, DEAD, Record
from minigpt.memory.evaluation import Evaluation
from minigpt.memory.gpus import GPUS
from minigpt.memory.plan import TrainingPlan
from minigpt.memory.predicted.allocator import Allocator, Block, Device, OutOfMemoryError
from minigpt.memory.predicted.training import Training

# FSDP's own streams, by what is made on them: a block of one stream is given to no other.
STREAMS = {"all-gather": 1, "reduce-scatter, shard": 2}


@dataclass(frozen=True)
class History:
    """A training on the tape: its events, how many had happened when each part began, and where the cache was emptied.

    Parts: loading, the first step, then steps like the plan's; with an evaluation, that before the last step.
    ``counts``: the part with which peaks of allocated bytes begin to count.
    """

    tape: Account
    parts: tuple[int, ...]
    counts: int = -1


def history(model, plan: TrainingPlan, steps: int = 2, evaluation: Evaluation | None = None) -> History:
    """Loading, and so many steps; of a plan whose step is the first, that one. Then an evaluation, and a step after it.

    Raises ValueError as ``Training``.
    """
    training, parts = Training(model, plan), [0]
    for _ in range(1 if plan.step == "first" else steps):
        parts.append(len(training.tape.events))
        training.step()
    if evaluation is not None:
        parts.append(len(training.tape.events))
        training.evaluate(evaluation)
        parts.append(len(training.tape.events))
        training.step()
    told = Account()
    told.events, told.emptied = list(training.tape.events), list(training.tape.emptied)
    return History(told, tuple(parts), -1 if evaluation is None else -2)


def reserve(model, plan: TrainingPlan, evaluation: Evaluation | None = None) -> Reserved:
    """What ``plan.card``'s allocator would count over a training of ``model``: loading, a first step, and one more.

    With an evaluation: that, too, and a step after it; what is allocated counts from its beginning on. Raises
    ValueError without a card, and as ``predict`` does.
    """
    told = history(model, plan, evaluation=evaluation)
    found = counted(told)
    room = GPUS[plan.card].room if plan.card else 0
    return found if found.reserved <= room else replace(found, failed=counted(told, room).failed)


def counted(told: History, capacity: int | None = None) -> Reserved:
    """What an allocator that may take ``capacity`` bytes (None: all that it asks for) counts over a history.

    Where it fails, as far as it came.
    """
    allocator = Allocator(device=Device(capacity))
    marks = Marks(told.parts)
    failed = ""
    try:
        replay(told.tape, allocator, told.parts[told.counts], marks=marks)
    except OutOfMemoryError as error:
        failed = str(error)
    allocated = allocator.statistics.allocated.peak
    return Reserved(allocated, marks.allocated, marks.most_reserved, marks.reserved, marks.loaded, failed)


class Marks:
    """The instants of an allocator's peaks, and what was reserved when loading was done."""

    def __init__(self, parts: Sequence[int]) -> None:
        self.first = parts[1] if len(parts) > 1 else 0
        self.allocated = self.reserved = ""
        self.loaded = self.most_reserved = self._most_allocated = 0

    def see(self, count: int, record: Record, allocator: Allocator, counting: bool) -> None:
        """Event ``count`` was ``record``'s birth; ``counting``: whether peaks of allocated bytes count yet."""
        allocated, reserved = allocator.statistics.allocated.current, allocator.statistics.reserved.current
        if count < self.first:
            self.loaded = reserved
        if reserved > self.most_reserved:
            self.most_reserved, self.reserved = reserved, _instant(record)
        if counting and allocated > self._most_allocated:
            self._most_allocated, self.allocated = allocated, _instant(record)


def _instant(record: Record) -> str:
    phase, block, doing = record.born
    return f"{phase}, {': '.join(filter(None, (block, doing)))}"


def replay(tape: Account, allocator: Allocator, began: int = 0, marks: Marks | None = None) -> None:
    """Let ``allocator`` serve the tape's events.

    From event ``began`` on its peaks count anew, as after reset_peak_memory_stats. The cache is emptied where the tape
    says so.
    """
    live: dict[Record, Block] = {}
    emptied = set(tape.emptied)
    for count, (_, record, kind) in enumerate(tape.events):
        if count in emptied:
            allocator.empty_cache()
        if count == began:
            _count_anew(allocator)
        if kind == BORN and record.nbytes:  # torch asks for nothing where there are no bytes
            live[record] = allocator.allocate(record.nbytes, STREAMS.get(record.born[2], 0))
            if marks is not None:
                marks.see(count, record, allocator, count >= began)
        elif kind == DEAD and record.nbytes:
            allocator.free(live.pop(record))


def _count_anew(allocator: Allocator) -> None:
    statistics = allocator.statistics
    for counter in (statistics.allocated, statistics.active, statistics.requested, statistics.reserved):
        counter.peak = counter.current
