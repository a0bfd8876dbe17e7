"""What the allocator counts, as ``torch.cuda.memory_stats`` does: now, and at most, and at which event that was.

``allocated`` counts whole blocks: what was rounded up and what was not split off belong to it. ``active`` also counts
blocks that were freed and still wait for another stream, ``requested`` what was asked for (of active blocks),
``reserved`` what was taken from the device. ``segments`` is a number, and leaves expandable segments out, as torch
does. Source: ``DeviceStats`` in ``c10/core/CachingDeviceAllocator.h``.
"""

from __future__ import annotations


class Counter:
    """A number, its maximum, and the event at which the maximum was first reached."""

    __slots__ = ("current", "event", "peak")

    def __init__(self):
        self.current = self.peak = self.event = 0

    def add(self, amount: int, event: int) -> None:
        self.current += amount
        if self.current > self.peak:
            self.peak, self.event = self.current, event

    def __repr__(self) -> str:
        return f"Counter(current={self.current:,}, peak={self.peak:,}, event={self.event})"


class Statistics:
    """The counters (bytes, but for ``segments``), and how often a full device was retried and refused."""

    def __init__(self):
        self.allocated, self.active, self.requested = Counter(), Counter(), Counter()
        self.reserved, self.segments = Counter(), Counter()
        self.retries = self.ooms = 0
