"""The requests of a programme for memory, one after the other: as they were recorded, and as the tape tells them.

A request has a number and a size in bytes. Between two requests some are let go, in an order that does not matter to
the allocator. What was there when the comparison begins has no number, and is known by its size.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from minigpt.memory.engine.account import Account
from minigpt.memory.engine.graph import BORN, DEAD, Record


@dataclass
class Requests:
    """``freed[i]``: what is let go before request i and after the one before: numbers, and sizes as ("old", size).

    ``places[i]``: the number of the event that request i is.
    """

    sizes: list[int] = field(default_factory=list)
    freed: list[Counter] = field(default_factory=lambda: [Counter()])
    places: list[int] = field(default_factory=list)

    def ask(self, nbytes: int, place: int) -> tuple[int | None, int]:
        self.sizes.append(nbytes)
        self.freed.append(Counter())
        self.places.append(place)
        return len(self.sizes) - 1, nbytes

    def let_go(self, number: int | None, nbytes: int) -> None:
        self.freed[-1][("old", nbytes) if number is None else number] += 1

    def parting(self, other: Requests) -> int | None:
        """The number of the first request before which, or in which, the two differ; None where they never do."""
        for i, (mine, theirs) in enumerate(zip(self.sizes, other.sizes, strict=False)):
            if mine != theirs or self.freed[i] != other.freed[i]:
                return i
        return None if len(self.sizes) == len(other.sizes) else min(len(self.sizes), len(other.sizes))

    def around(self, number: int) -> str:
        """Request ``number`` in words."""
        if number >= len(self.sizes):
            return "no such request"
        first = [str(what) for what in list(self.freed[number])[:5]]
        return f"{self.sizes[number]:,} bytes, after {sum(self.freed[number].values())} let go: {' '.join(first)}"


def recorded(held: Iterable[tuple[int, int]], events: Iterable[tuple[str, int, int]], began: int = 0) -> Requests:
    """A recording's, from event ``began`` on.

    ``held``: address and bytes of what was there before; ``events``: action, address and bytes.
    """
    found = Requests()
    live: dict[int, tuple[int | None, int]] = {address: (None, nbytes) for address, nbytes in held}
    for count, (action, address, nbytes) in enumerate(events):
        if action == "alloc":
            live[address] = found.ask(nbytes, count) if count >= began else (None, nbytes)
        elif action == "free_requested":
            request = live.pop(address, (None, nbytes))
            if count >= began:
                found.let_go(*request)
    return found


def told(tape: Account, began: int = 0) -> Requests:
    """The tape's, from event ``began`` on. Where there are no bytes torch asks for nothing."""
    found, live = Requests(), dict[Record, tuple[int | None, int]]()
    for count, (_, record, kind) in enumerate(tape.events):
        if kind == BORN and record.nbytes:
            live[record] = found.ask(record.nbytes, count) if count >= began else (None, record.nbytes)
        elif kind == DEAD and record.nbytes:
            request = live.pop(record)
            if count >= began:
                found.let_go(*request)
    return found
