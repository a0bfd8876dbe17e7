"""Why memory was reserved: each time the allocator took memory from the device, and the request that made it."""

from __future__ import annotations

from typing import NamedTuple

from minigpt.memory.snapshot.holders import line
from minigpt.memory.snapshot.recording import TAKEN, Recording


class Growth(NamedTuple):
    """``taken`` bytes from the device for a request of ``asked`` bytes by ``line``.

    ``unused`` bytes were reserved then, and free, but no block of them was large enough or in the right pool.
    """

    taken: int
    asked: int
    unused: int
    line: str


def growth(recording: Recording) -> list[Growth]:
    """Every time memory was taken, up to the peak of reserved bytes, in order."""
    sizes, waiting = list(recording.sizes()), list[tuple[int, int]]()
    last = recording.peak(1)
    grown = list[Growth]()
    for place, event in enumerate(recording.events):
        if place >= last and not waiting:
            break
        if TAKEN.get(event.action, 0) > 0 and place < last:
            allocated, reserved = sizes[place]
            waiting.append((event.request.nbytes, reserved - allocated))
        elif event.action == "alloc" and waiting:
            request = event.request
            grown.append(Growth(sum(n for n, _ in waiting), request.nbytes, waiting[0][1], line(request.frames)))
            waiting = []
    return grown
