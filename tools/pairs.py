"""Several ways to do one thing, timed in turns: A, B, then B, A, then A, B … The figure is the ratio inside a turn.

A machine that is busy for a while slows the turns of that while, and both ways in them: the ratio of a turn stays what
it is, where a ratio of one block of A to one block of B, or of two medians, does not. So the benches print the median
of the ratios, with the smallest and the largest: how far to trust it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass


def clocked(run: Callable[[], object]) -> Callable[[], float]:
    """``run``, returning the seconds that it took instead of its result."""

    def timed() -> float:
        started = time.perf_counter()
        run()
        return time.perf_counter() - started

    return timed


def in_turns(
    ways: dict[str, Callable[[], float]], turns: int, seconds: float = 0, warm_up: bool = True
) -> dict[str, list[float]]:
    """What each of ``ways`` returns, seconds, turn by turn: ``turns`` of them, or more until ``seconds`` are over.

    Who goes first alternates. With ``warm_up`` each is called once before, which does not count.
    """
    if warm_up:
        for run in ways.values():
            run()
    taken: dict[str, list[float]] = {name: [] for name in ways}
    end, turn = time.perf_counter() + seconds, 0
    while turn < turns or time.perf_counter() < end:
        for name in reversed(ways) if turn % 2 else ways:
            taken[name].append(ways[name]())
        turn += 1
    return taken


@dataclass(frozen=True)
class Ratio:
    """How many times as long one way took as another: the median over the turns, the smallest, the largest."""

    median: float
    smallest: float
    largest: float

    @classmethod
    def of(cls, taken: dict[str, list[float]], one: str, other: str) -> Ratio:
        """``one``'s time over ``other``'s, from what ``in_turns`` returned."""
        ratios = [a / b for a, b in zip(taken[one], taken[other], strict=True)]
        return cls(statistics.median(ratios), min(ratios), max(ratios))

    def __str__(self) -> str:
        return f"{self.median:.2f}x ({self.smallest:.2f} to {self.largest:.2f})"
