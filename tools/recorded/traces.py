"""A recording as the requests of a programme: what it asked for, and what it had let go before each.

``events`` are the programme's own, without the allocator's: (size in bytes, None) asks, (None, number) lets go of the
request of that number. What was there when recording began has numbers below 0, and is known by its size alone.
"""

from __future__ import annotations

import csv
import gzip
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from minigpt.memory.engine.graph import BORN, DEAD
from minigpt.memory.engine.tape import Tape


@dataclass
class Requests:
    """A sequence of requests. ``freed[i]``: what is let go between requests i - 1 and i, by number, or by size."""

    sizes: list[int] = field(default_factory=list)
    freed: list[Counter] = field(default_factory=lambda: [Counter()])
    held: Counter = field(default_factory=Counter)  # sizes of what was there before

    def ask(self, nbytes: int) -> int:
        self.sizes.append(nbytes)
        self.freed.append(Counter())
        return len(self.sizes) - 1

    def let_go(self, number: int | None, nbytes: int) -> None:
        self.freed[-1][("before", nbytes) if number is None else number] += 1

    def parting(self, other: Requests) -> int | None:
        """The number of the first request before which, or in which, the two differ; None where they are the same."""
        for i, (a, b) in enumerate(zip(self.sizes, other.sizes)):
            if a != b or self.freed[i] != other.freed[i]:
                return i
        return None if len(self.sizes) == len(other.sizes) else min(len(self.sizes), len(other.sizes))


def read(path: Path) -> Requests:
    """The recording at ``path`` (``traces/NAME.csv.gz``)."""
    found, live = Requests(), {}
    with gzip.open(path, "rt", encoding="utf8") as file:
        for row in csv.DictReader(file):
            action, address = row["action"], row["address"]
            if action == "init_block":
                asked = int(row["note"] or row["size"])
                live[address] = (None, asked)
                found.held[asked] += 1
            elif action == "alloc":
                live[address] = found.ask(int(row["size"])), int(row["size"])
            elif action == "free_requested":
                found.let_go(*live.pop(address))
    return found


def told(tape: Tape, began: int) -> Requests:
    """What happened on the tape from event ``began`` on."""
    found, live = Requests(), {}
    for count, (_, record, kind) in enumerate(tape.events):
        if kind == BORN:
            live[record] = (found.ask(record.nbytes) if count >= began else None), record.nbytes
        elif kind == DEAD:
            number, nbytes = live.pop(record)
            if count >= began:
                found.let_go(number, nbytes)
        if count == began - 1:
            found.held = Counter(nbytes for _, nbytes in live.values())
    return found
