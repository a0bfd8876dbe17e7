"""Events through a student's allocator, and a run that a student chooses by trying others.

places(allocate, free, events)       what each event came to, as far as it went, and the Wrong that stopped it
found(best_fit, blocks, pool, size)  what ``best_fit`` gives, and whether it is one of the blocks themselves
chosen(empty_once, lengths, goes)    what ``empty_once(lengths, fits)`` gives, where ``fits`` knows these runs
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from minigpt.checks.calling import name_of
from minigpt.checks.closing import by_hand
from minigpt.checks.comparing import show, whole
from minigpt.checks.probes import probe, tried
from minigpt.checks.verdict import Wrong

ALIGNED = 1 << 21  # bytes: where a segment can begin
START = 1 << 40  # the first segment ends here, and each lies right below the one before


class Event(NamedTuple):
    """``action`` is "born" or "died"; ``key`` is one storage's number, and ``nbytes`` what it asks for."""

    action: str
    key: int
    nbytes: int


class Seen(NamedTuple):
    """What an event came to: its block, the segments that were taken for it, and all blocks: (address, size, free)."""

    block: tuple[int, int] | None
    taken: tuple[int, ...]
    blocks: tuple[tuple[int, int, bool], ...]


@probe
def places(allocate: Callable, free: Callable, events: Sequence[Event]) -> dict:
    seen: list[Seen] = []

    def run():
        follow(allocate, free, events, seen)

    run.__name__ = "allocate or free"
    return {"fault": tried(by_hand, run, twice=False, none_ok=True), "seen": seen}


@probe
def found(best_fit: Callable, blocks: list[dict], pool: str, size: int) -> dict:
    """ "block": what ``best_fit`` gives; "itself": whether it is one of ``blocks``, and no copy of one."""
    block, given = by_hand(best_fit, blocks, pool, size, none_ok=True), []

    def again():
        given.append(best_fit(blocks, pool, size))

    again.__name__ = name_of(best_fit)
    by_hand(again, twice=False, none_ok=True)
    return {"block": block, "itself": any(given[0] is each for each in blocks)}


@probe
def chosen(empty_once: Callable, lengths: list[int], goes: Sequence[tuple[list, bool]]):
    """``goes``: runs, and whether each goes through."""
    table = {tuple(run): fits for run, fits in goes}

    def fits(run):
        """Whether a run goes through."""
        if tuple(run) not in table:
            raise Wrong(
                "other-run", f"fits({show(run)}): the steps as they come, with 'empty_cache' once, is asked for"
            )
        return table[tuple(run)]

    return by_hand(empty_once, lengths, fits)


def follow(allocate: Callable, free: Callable, events: Sequence[Event], seen: list[Seen]) -> None:
    """Every event through an allocator; what it came to goes to ``seen``."""
    lowest = START
    blocks: list[dict] = []
    live: dict[int, Any] = {}
    taken: list[int] = []

    def take(size):
        nonlocal lowest
        size = whole(size, "device(size)")
        if size < 1:
            raise Wrong("segment-size", f"device({size:,}): a segment has at least 2 MiB")
        taken.append(size)
        lowest = (lowest - size) // ALIGNED * ALIGNED
        return lowest

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
        there = list(map(_plain, blocks))
        seen.append(Seen(place, tuple(taken), tuple(sorted(there))))
        if block is not None and not any(block is each for each in blocks):
            raise Wrong("copy", "allocate gives a copy of a block; the block itself, which is in blocks, is asked for")
        if there != sorted(there):
            raise Wrong("out-of-order", "blocks are not in the order of their addresses any more")


def _plain(block: Mapping) -> tuple[int, int, bool]:
    """(address, size, free)."""
    return whole(block["address"], "an address"), whole(block["size"], "a size"), True if block["free"] else False
