"""measure_ranks(model, plan): the plan's training step with all its ranks, each a process with a meter of its own.

    measure_ranks(GPTConfig.preset("nano"), TrainingPlan(sharding="fsdp2", ranks=2))      [rank 0's, rank 1's]

The ranks run here, over gloo, and do what they would do on as many GPUs; ``plan.batch`` is that of one rank. They begin
with the same weights and read different tokens. Bytes are those of a rank, so what it has sent and what it waits for
is not in them; nor is what gloo needs for itself.

A step is steady when it leaves behind what it found: with DistributedDataParallel that is the third, since it lays
out its buckets anew in the second. They lie in C++, where no name leads to them: they are what outlives a step.

``fully_shard`` cuts parameters, so what is none stays whole on every rank: the scales of a 4-bit base, and the codes of
a 4-bit MiniGPT, which are buffers; bitsandbytes' codes are parameters and are cut.

Left out: ranks on GPUs, fake tensors.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict

import torch

from minigpt.memory.buckets import StepMemory
from minigpt.memory.measured.apart import Call
from minigpt.memory.measured.building import build
from minigpt.memory.measured.meeting import Meeting
from minigpt.memory.measured.meter import MemoryMeter
from minigpt.memory.measured.sharded import share
from minigpt.memory.measured.step import make_batch, training_step
from minigpt.memory.measured.together import run_ranks
from minigpt.memory.plan import TrainingPlan

WARM = defaultdict(lambda: 1, ddp=2)  # steps before the steady one


def measure_ranks(model, plan: TrainingPlan, *, timeout: float = 300) -> list[StepMemory]:
    """The memory of one training step, rank by rank. ``model`` as in ``measure_apart``.

    Raises ValueError for what is not measured or refused by the libraries, and what ``run_ranks`` raises for a rank
    that fails.
    """
    (result,) = measure_many_ranks({"it": (model, plan)}, timeout=timeout).values()
    if isinstance(result, ValueError):
        raise result
    return result


def measure_many_ranks(cases: dict[str, tuple], *, timeout: float = 300) -> dict[str, list[StepMemory] | ValueError]:
    """As ``measure_ranks`` for each (model, plan), one after the other in the same processes; a refusal in its place.

    Starting the processes takes some seconds, a small case much less.
    """
    for name, (_, plan) in cases.items():
        if plan.sharding == "none":
            raise ValueError(f"sharding is 'none' in {name!r}; a training of one process is what measure measures")
    ranks = max(plan.ranks for _, plan in cases.values())
    call = Call("minigpt.memory.measured.ranks:one_rank", {"cases": list(cases.values())})
    by_rank = run_ranks(call, ranks, timeout=timeout)
    found: dict[str, list[StepMemory] | ValueError] = {}
    for i, (name, (_, plan)) in enumerate(cases.items()):
        first = by_rank[0][i]
        found[name] = ValueError(first) if isinstance(first, str) else [by_rank[r][i] for r in range(plan.ranks)]
    return found


def one_rank(cases: list, rank: int, meeting: Meeting) -> list:
    """In a rank's process: its step of every case that it is part of, or the words of a refusal."""
    found: list[StepMemory | str | None] = []
    for i, (model, plan) in enumerate(cases):
        if rank >= plan.ranks:
            found.append(None)
            continue
        try:
            with meeting.joined(str(i), rank, plan.ranks):
                found.append(measure_rank(model, plan, rank))
        except ValueError as error:
            found.append(str(error))
    return found


def measure_rank(model, plan: TrainingPlan, rank: int) -> StepMemory:
    """This rank's step, in a process that has joined the others."""
    torch.manual_seed(0)  # the same weights everywhere
    built = build(model, plan)  # before the meter, which would take what libraries keep for themselves for the step's
    with MemoryMeter() if plan.sharding == "ddp" else contextlib.nullcontext() as before:
        module, optimizer = share(built, plan)
        torch.manual_seed(1 + rank)
        batch = make_batch(module, plan)
        for _ in range(WARM[plan.sharding] if plan.step == "steady" else 0):
            training_step(module, optimizer, batch, plan)
        if plan.zero_grad == "before_forward":
            module.zero_grad()
        found = batch.tensors() if before is None else before.alive()
    with MemoryMeter(module, optimizer, found) as meter:
        training_step(module, optimizer, batch, plan, meter.mark)
    return meter.result()
