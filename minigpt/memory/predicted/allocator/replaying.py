"""Recorded events through an allocator, and every decision compared with the recorded one.

Only the addresses of new segments are the device's own choice, and come from the recording. At its first difference a
replay stops, and names it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from minigpt.memory.predicted.allocator.blocks import Block
from minigpt.memory.predicted.allocator.caching import Allocator
from minigpt.memory.predicted.allocator.recorded import DifferenceError, RecordedDevice

TAKEN, GIVEN_BACK = ("segment_alloc", "segment_map"), ("segment_free", "segment_unmap")


class Recorded(NamedTuple):
    """One event as torch records it; ``size`` of a request is what was asked for."""

    action: str
    address: int
    size: int
    stream: int = 0


def replay(
    events: Sequence[Recorded], allocator: Allocator, device: RecordedDevice, live: dict[int, Block]
) -> Iterator[tuple[int, Block, int]]:
    """After each request: its place in ``events``, its block, and how many segments or pages were taken for it.

    ``allocator`` allocates on ``device``; ``live``: the blocks in use before the first event, by address, kept up to
    date. Raises DifferenceError.
    """
    for place, event in enumerate(events):
        action, address, size, stream = event
        behind = events[place + 1] if place + 1 < len(events) else None
        if action in TAKEN:
            device.coming.append((address, size))
        elif action in GIVEN_BACK:
            device.leaving.add((address, size))
            if behind is None or behind.action not in GIVEN_BACK:
                allocator.empty_cache()
                if device.leaving:
                    raise DifferenceError(f"keeps {len(device.leaving)} segments that the recording gives back")
        elif action == "alloc":
            coming = len(device.coming)
            block = allocator.allocate(size, stream)
            if device.coming:
                raise DifferenceError("takes no segment, which the recording does")
            if block.address != address:
                raise DifferenceError(f"places {size:,} bytes at {block.address}, the recording at {address}")
            live[address] = block
            yield place, block, coming
        elif action == "free_requested":
            if address not in live:
                raise DifferenceError(f"has no block at {address} that the recording frees")
            at_once = behind is not None and (behind.action, behind.address) == ("free_completed", address)
            if not at_once:  # it waits for a stream that the recording does not name
                allocator.record_stream(live[address], -1 - address)
            allocator.free(live.pop(address))
        elif action == "free_completed":
            allocator.finish(-1 - address)
            allocator.look_at_events()
