"""Where in a told training a recording began: the place from which the sizes of its requests agree longest.

A recording may begin anywhere: before loading, with a step, in its midst. Of places that agree equally long, that one
is taken before which as much was held as the recording says; of equal ones the first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

ENOUGH = 16  # so many requests in a row that agree are no chance
SKIPPED = 32  # so many requests in front may be none of the plan's: a batch that is copied


class Place(NamedTuple):
    """The recording's request ``skipped`` is the told request ``number``; ``agree`` in a row do. ``ways``: at how many
    places; ``sure``: whether that is more than chance."""

    skipped: int
    number: int
    agree: int
    ways: int
    sure: bool


def find(
    recorded: Sequence[int], told: Sequence[int], starts: Sequence[int], apart: Callable[[int, int], int]
) -> Place:
    """The place of the recorded sizes among the told ones.

    ``starts``: the told requests with which a part begins: one of them is assumed where nothing agrees for long.
    ``apart``: by how many bytes what is held before a recorded and a told request differs.
    """
    best = Place(0, 0, 0, 0, False)
    for skipped in range(min(SKIPPED, len(recorded) - 1) + 1):
        wanted = recorded[skipped:]
        runs = agreeing(wanted, told)
        longest = max(runs)
        if longest >= min(ENOUGH, len(recorded)) and longest > best.agree:
            places = [number for number, run in enumerate(runs) if run == longest]
            best = Place(skipped, min(places, key=lambda n: (apart(skipped, n), n)), longest, len(places), True)
        if best.agree == len(recorded):
            break
    if best.sure:
        return best
    runs = agreeing(recorded, told)
    number = min(starts, key=lambda n: (-runs[n], apart(0, n), n))
    return Place(0, number, runs[number], 1, False)


def agreeing(wanted: Sequence[int], told: Sequence[int]) -> list[int]:
    """For each place in ``told``: how many of ``wanted`` agree from there on. In linear time: the Z function."""
    text = [*wanted, -1, *told]
    runs, left, right = [0] * len(text), 0, 0
    for i in range(1, len(text)):
        run = min(right - i, runs[i - left]) if i < right else 0
        while i + run < len(text) and text[run] == text[i + run]:
            run += 1
        runs[i] = run
        if i + run > right:
            left, right = i, i + run
    return runs[len(wanted) + 1 :]
