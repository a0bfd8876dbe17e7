"""What a rank holds, and sends, when several train one model.

    shards           how tensors are dealt out
    gathered         memory that comes and goes under a tensor
    fsdp             torch's fully_shard
    flat             ZeRO's stages by hand, minigpt.sharding's
    ddp              torch's DistributedDataParallel
    communication    what goes over the wire
    choosing         which of them, and what is refused

``predict`` gives rank 0's step, ``rank`` any rank's, ``communication`` what each sends and receives.
"""

from __future__ import annotations

from minigpt.memory.buckets import StepMemory
from minigpt.memory.engine.tape import Tape
from minigpt.memory.plan import TrainingPlan
from minigpt.memory.predicted.sharded.communication import Sent, sent_by

__all__ = ["Sent", "communication", "rank"]


def rank(model, plan: TrainingPlan, rank: int) -> StepMemory:
    """The memory of one rank's step. Raises ValueError as ``predict``, and for a rank that is none."""
    from minigpt.memory.predicted.run import run  # here, because that is made of this package's files

    return run(model, plan, Tape.result, rank=rank)


def communication(model, plan: TrainingPlan) -> tuple[Sent, ...]:
    """What a rank sends and receives in a step, by collective and phase. Raises ValueError as ``predict``."""
    from minigpt.memory.predicted.run import run

    found: list[Sent] = []
    run(model, plan, lambda tape, _: None, seen=lambda began: found.extend(sent_by(began.layers.ranks, plan)))
    return tuple(found)
