"""Judging ``allocate`` and ``free`` event by event: the truth is the course's allocator, on a like device.

    places(allocate, free, events)      as ``requests(seed, count)`` draws them, or ``recorded.attention()`` has them

``allocate(blocks, nbytes, device)`` and ``free(blocks, block)`` change a list of blocks, which are dictionaries. A
mistake is named by what an allocator that makes it does with the same events (``flawed``).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from minigpt.checks.allocating import asking  # noqa: F401  closes the book
from minigpt.checks.allocating.flawed import FLAWS, Flawed
from minigpt.checks.closing import knows
from minigpt.checks.probes import allocating, unless_wrong
from minigpt.checks.probes.allocating import START, Event, Seen, follow
from minigpt.checks.verdict import Wrong
from minigpt.memory.predicted.allocator import Allocator, Device
from minigpt.memory.predicted.allocator.blocks import FREE
from minigpt.memory.units import KIB, MIB

knows(__name__)


def places(allocate: Callable, free: Callable, events: Sequence[Event]) -> None:
    said = allocating.places(allocate, free, events)
    mine = [Seen(*each) for each in said["seen"]]
    right = true_trace(events)
    at = next((i for i, (a, b) in enumerate(zip(mine, right)) if a != b), None)
    if at is not None:
        _explain(events, mine, right, at)
    unless_wrong(said["fault"])
    if len(mine) != len(right):
        raise Wrong("broken-reply", f"of {len(right)} events {len(mine)} are told of")


def requests(seed: int, count: int, frees: bool = True) -> list[Event]:
    """Random events: sizes that meet each rule, several of them again and again."""
    draw = random.Random(seed)
    often = [draw.randrange(1, MIB), draw.randrange(MIB, 9 * MIB), draw.randrange(10 * MIB, 30 * MIB)]
    events: list[Event] = []
    live: list[tuple[int, int]] = []
    for key in range(count):
        few = draw.choice((512, 100 * KIB, MIB, 3 * MIB, 12 * MIB))
        nbytes = draw.choice((draw.choice(often), draw.randrange(1, few + 1), few))
        events.append(Event("born", key, nbytes))
        live.append((key, nbytes))
        while frees and len(live) > 3 and draw.random() < 0.55:
            events.append(Event("died", *live.pop(draw.randrange(len(live)))))
    return events


# ---------------------------------------------------------------- what happens


def true_trace(events: Sequence[Event]) -> list[Seen]:
    """What each event comes to in the course's allocator."""
    device = Device()
    device.lowest = START
    allocator, live, told = Allocator(device=device), {}, []
    for event in events:
        before, block = set(allocator.segments), None
        if event.action == "born":
            block = live[event.key] = allocator.allocate(event.nbytes)
        else:
            allocator.free(live.pop(event.key))
        blocks = [b for segment in allocator.segments.values() for b in segment.blocks()]
        new = tuple(segment.size for address, segment in allocator.segments.items() if address not in before)
        place = (block.address, block.size) if block is not None else None
        told.append(Seen(place, new, tuple(sorted((b.address, b.size, b.state is FREE) for b in blocks))))
    return told


def flawed_trace(events: Sequence[Event], flaw: str) -> list[Seen]:
    """What each event comes to with a mistake, as far as it goes."""
    seen: list[Seen] = []
    own = Flawed(lambda size: 0, flaw)

    def allocate(blocks, nbytes, device):
        own.device = device
        block = own.allocate(nbytes)
        blocks[:] = own.blocks
        return block

    def free(blocks, block):
        own.free(block)
        blocks[:] = own.blocks

    try:
        follow(allocate, free, events, seen)
    except ValueError:  # it lost a block
        pass
    return seen


# ---------------------------------------------------------------- what is wrong


def _explain(events: Sequence[Event], mine: list[Seen], right: list[Seen], at: int) -> None:
    """Raise Wrong for the first event that came to something else."""
    event, got, asked = events[at], mine[at], right[at]
    what = f"event {at + 1}, {'a request of' if event.action == 'born' else 'freeing'} {event.nbytes:,} bytes"
    for flaw, sentence in FLAWS.items():
        other = flawed_trace(events[: len(mine)], flaw)
        length = min(len(other), len(mine))
        if length > at and other[:length] == mine[:length]:
            raise Wrong(flaw, f"{what}: {sentence}")
    if got.taken != asked.taken:
        took, should = (", ".join(f"{size:,}" for size in one.taken) or "none" for one in (got, asked))
        raise Wrong("other-segments", f"{what}: segments taken of the device: {took}; right: {should}")
    if got.block != asked.block and got.block and asked.block:
        if got.block[0] != asked.block[0]:
            raise Wrong("other-place", f"{what}: it has the block {_place(got)}; right is the one {_place(asked)}")
        raise Wrong("other-size", f"{what}: its block has {got.block[1]:,} bytes, and should have {asked.block[1]:,}")
    if sum(size for _, size, _ in got.blocks) != sum(size for _, size, _ in asked.blocks):
        raise Wrong("bytes-lost", f"{what}: afterwards the blocks have {sum(b[1] for b in got.blocks):,} bytes in all, "
                    f"and the segments {sum(b[1] for b in asked.blocks):,}")  # fmt: skip
    used, right_used = (sum(size for _, size, free in one.blocks if not free) for one in (got, asked))
    if used != right_used:
        raise Wrong("in-use", f"{what}: afterwards {used:,} bytes are in use, and should be {right_used:,}")
    raise Wrong("other-blocks", f"{what}: afterwards there are {len(got.blocks)} blocks, and should be "
                f"{len(asked.blocks)}: what lies side by side, free, in one segment, is one block")  # fmt: skip


def _place(seen: Seen) -> str:
    assert seen.block is not None
    return f"of {seen.block[1]:,} bytes that begins {START - seen.block[0]:,} bytes below the first segment's end"
