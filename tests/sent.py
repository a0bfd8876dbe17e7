"""In the process of a rank: its metered step, and how many bytes another step passes to torch.distributed."""

from __future__ import annotations

from collections import Counter

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from minigpt.memory.measured.building import build
from minigpt.memory.measured.meeting import Meeting
from minigpt.memory.measured.ranks import measure_rank
from minigpt.memory.measured.sharded import share
from minigpt.memory.measured.step import make_batch, training_step

NAMES = {
    "_allgather_base_": "all-gather", "_reduce_scatter_base_": "reduce-scatter", "allreduce_": "all-reduce",
    "broadcast_": "broadcast",
}  # fmt: skip


class Counted(TorchDispatchMode):
    """Bytes of the whole tensor of each collective, by name and phase."""

    def __init__(self) -> None:
        super().__init__()
        self.phase, self.passed = "", Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        from torch.distributed.tensor import DTensor

        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        if func.namespace == "c10d":
            name = NAMES[func.name().removeprefix("c10d::")]
            whole = args[0] if name != "reduce-scatter" else [args[1]]
            tensors = whole if isinstance(whole, (list, tuple)) else [whole]
            self.passed[f"{name}, {self.phase}"] += sum(t.numel() * t.itemsize for t in tensors)
        return func(*args, **(kwargs or {}))


def metered_and_counted(cases: list, rank: int, meeting: Meeting) -> list:
    """(the rank's StepMemory, bytes by collective and phase) of each case, None where it has no part."""
    found = []
    for i, (model, plan) in enumerate(cases):
        if rank >= plan.ranks:
            found.append(None)
            continue
        with meeting.joined(str(i), rank, plan.ranks):
            found.append((measure_rank(model, plan, rank), counted(model, plan)))
    return found


def counted(model, plan) -> dict[str, int]:
    torch.manual_seed(0)
    module, optimizer = share(build(model, plan), plan)
    batch = make_batch(module, plan)
    for _ in range(2):  # DDP sends its buckets' layout around before the second
        training_step(module, optimizer, batch, plan)
        module.zero_grad()
    with Counted() as counting:
        training_step(module, optimizer, batch, plan, lambda phase: setattr(counting, "phase", phase))
    return dict(counting.passed)
