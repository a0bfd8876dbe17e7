"""Events through a student's allocator, and what each came to. It runs while the answer does, so it tells no truth.

follow(allocate, free, events, seen)      ``seen`` grows by a ``Seen`` for each event
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from minigpt.checks.allocating.running import Event
from minigpt.checks.comparing import show, whole
from minigpt.checks.verdict import Wrong
from minigpt.memory.predicted.allocator import Device

START = 1 << 40  # the first segment ends here, and each lies right below the one before


class Seen(NamedTuple):
    """What an event came to: its block, the segments that were taken for it, and all blocks: (address, size, free)."""

    block: tuple[int, int] | None
    taken: tuple[int, ...]
    blocks: tuple[tuple[int, int, bool], ...]


def follow(allocate: Callable, free: Callable, events: Sequence[Event], seen: list[Seen]) -> None:
    """Every event through an answer; what it came to goes to ``seen``."""
    device = low_device()
    blocks: list[dict] = []
    live: dict[int, Any] = {}
    taken: list[int] = []

    def take(size):
        size = whole(size, "device(size)")
        if size < 1:
            raise Wrong("segment-size", f"device({size:,}): a segment has at least 2 MiB")
        taken.append(size)
        return device.malloc(size)

    for event in events:
        taken.clear()
        block: Any = None
        if event.action == "born":
            block = live[event.key] = allocate(blocks, event.nbytes, take)
            if not isinstance(block, Mapping):
                raise Wrong("no-block", f"allocate gives {show(block)}; the block is asked for, one of blocks")
        else:
            free(blocks, live.pop(event.key))
        place = _plain(block)[:2] if block is not None else None
        seen.append(Seen(place, tuple(taken), tuple(sorted(map(_plain, blocks)))))


def _plain(block: Mapping) -> tuple[int, int, bool]:
    """(address, size, free)."""
    return whole(block["address"], "an address"), whole(block["size"], "a size"), True if block["free"] else False


def low_device() -> Device:
    """A device whose first segment ends at ``START``."""
    device = Device()
    device.lowest = START
    return device
