"""A tape's events through the caching allocator: what torch's counters would show, and what would be reserved.

Each storage of the tape asks for a block when it is born and gives it back when it dies, in the tape's own order. What
CUDA's kernels ask for beside (``predicted.cuda``) is on the tape as well, if it was given such kernels. New segments
have addresses downwards (``allocator.device``), the one thing that no source tells.
"""

from __future__ import annotations

from minigpt.memory.engine.account import Account
from minigpt.memory.engine.graph import BORN, DEAD, Record
from minigpt.memory.predicted.allocator import Allocator, Block


def replay(tape: Account, allocator: Allocator, began: int = 0, emptied: bool = False) -> None:
    """Let ``allocator`` serve the tape. From event ``began`` on its peaks count, as after reset_peak_memory_stats;
    ``emptied``: after empty_cache."""
    live: dict[Record, Block] = {}
    for count, (_, record, kind) in enumerate(tape.events):
        if count == began:
            _begin(allocator, emptied)
        if kind == BORN and record.nbytes:  # torch asks for nothing where there are no bytes
            live[record] = allocator.allocate(record.nbytes)
        elif kind == DEAD and record.nbytes:
            allocator.free(live.pop(record))


def _begin(allocator: Allocator, emptied: bool) -> None:
    if emptied:
        allocator.empty_cache()
    statistics = allocator.statistics
    for counter in (statistics.allocated, statistics.active, statistics.requested, statistics.reserved):
        counter.peak = counter.current
