"""Naming the mistake behind a wrong number: from listed hints, or from the ratios that units and copies leave.

Hints are {id: (sentence, value)}: in ``wrong`` the value that the mistake gives, in ``slips`` how much it adds.
Slips may come in groups, a list of Hints: those of one group are about one thing, so nobody makes two of them at once.

One slip explains a difference, or a telling ratio; or two slips of different groups do, where no one thing does.
Several that leave the same difference are all named, with "or", but for those that an earlier case of the same part
would have shown, and which was right (``part`` and ``ruled_out``); where several pairs leave it, none is.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

from minigpt.memory.units import GB, GIB, MB, MIB

Hints = dict[str, tuple[str, Any]]
Slips = Hints | list[Hints]

FACTORS = {  # of every element of a tensor
    "zero": ("it is zero everywhere", 0), "sign": ("its sign is turned round", -1),
    "twice": ("it is twice what it should be", 2), "half": ("it is half of what it should be", 0.5),
    "four-times": ("it is 4 times what it should be", 4), "quarter": ("it is a quarter of what it should be", 0.25),
}  # fmt: skip

LARGE_UNITS = {"GB": GB, "GiB": GIB, "MB": MB, "MiB": MIB}

BYTE_RATIOS = {  # (got, expected) in the ratio of these
    "bits": ("8 times too much: those are bits, and bytes are asked for", (8, 1)),
    "eighth": ("an eighth of it: there are 8 bits in a byte, and these bytes were divided by 8", (1, 8)),
    "twice": ("exactly twice too much: count the bytes per number again", (2, 1)),
    "half": ("exactly half of it: count the bytes per number again", (1, 2)),
    "four-times": ("exactly 4 times too much: count the bytes per number again", (4, 1)),
    "quarter": ("exactly a quarter of it: that looks like a number of elements, each of which takes 4 bytes", (1, 4)),
}


_ruled_out: set[tuple[str, str]] = set()  # (bucket, id)


@contextlib.contextmanager
def part() -> Iterator[None]:
    """Around the cases of one part: what one of them rules out, the next need not name."""
    _ruled_out.clear()
    try:
        yield
    finally:
        _ruled_out.clear()


def ruled_out(slips: Slips, bucket: str = "") -> None:
    """A case was right in which each of these slips would have shown."""
    _ruled_out.update((bucket, id) for group in groups(slips) for id in group)


def given(hints: Hints, value: Callable) -> Hints:
    """The same mistakes, with what each of their values gives."""
    return {id: (sentence, value(cause)) for id, (sentence, cause) in hints.items()}


def times(slips: list[Hints], nbytes: int) -> list[Hints]:
    """The same slips in bytes, where they are in numbers of ``nbytes`` bytes."""
    return [given(group, lambda extra: nbytes * extra) for group in slips]


def groups(slips: Slips) -> list[Hints]:
    """The slips that change anything, group by group; in a plain table each is a group of its own."""
    each = [{id: hint} for id, hint in slips.items()] if isinstance(slips, dict) else slips
    return [{id: hint for id, hint in group.items() if hint[1]} for group in each]


def diagnose(
    got: int, expected: int, wrong: Hints | None = None, slips: Slips | None = None, unit: str = "",
    others: Hints | None = None, bucket: str = "",
) -> tuple[str, str]:  # fmt: skip
    """(id, sentence) of what is wrong with ``got``: a listed mistake, a slip, a ratio, two slips, or how much.

    ``others`` is as ``wrong``, and weaker than a single slip. Two slips have both ids, joined by "+".
    """
    id, sentence = _mistake(got, expected, wrong or {}, _likely(groups(slips or {}), bucket), unit, others or {})
    return id, f"{sentence} (yours {got:,}, right {expected:,}{' ' + unit if unit else ''})"


def _mistake(got: int, expected: int, wrong: Hints, slips: list[Hints], unit: str, others: Hints) -> tuple[str, str]:
    difference = got - expected
    single = {id: hint for group in slips for id, hint in group.items()}
    found = _alike(wrong, got) or _alike(single, difference) or _alike(others, got)
    found = found or _ratio(got, expected, unit) or _two(slips, difference)
    if found:
        return found
    what = f"{abs(difference):,} {unit}".strip()
    return ("too-many", f"{what} too many") if difference > 0 else ("too-few", f"{what} too few")


def _likely(slips: list[Hints], bucket: str) -> list[Hints]:
    """Without those that are ruled out, where another has the same value."""
    values = [extra for group in slips for id, (_, extra) in group.items() if (bucket, id) not in _ruled_out]
    return [{id: hint for id, hint in group.items() if (bucket, id) not in _ruled_out or hint[1] not in values}
            for group in slips]  # fmt: skip


def _ratio(got: int, expected: int, unit: str) -> tuple[str, str] | None:
    if got == 0:
        return "nothing-counted", "nothing is counted"
    if unit != "bytes":
        return None
    if abs(got * GB - expected * GIB) <= GB:  # to one byte, since somebody rounded
        return "gib-for-gb", "exactly 1.0737 times too much: GiB taken for GB, 2**30 in the place of 10**9"
    if abs(got * GIB - expected * GB) <= GIB:
        return "gb-for-gib", "too little by a factor of exactly 1.0737: GB taken for GiB, 10**9 in the place of 2**30"
    for id, (sentence, (mine, right)) in BYTE_RATIOS.items():
        if got * right == expected * mine:
            return id, sentence
    return None


def _alike(hints: Hints, value: int) -> tuple[str, str] | None:
    """The first id with this value, and the sentences of all that have it."""
    found = {id: sentence for id, (sentence, other) in hints.items() if other == value}
    first, *more = dict.fromkeys(found.values()) or [""]
    return (next(iter(found)), "; or ".join([first, *more])) if found else None


def _two(slips: list[Hints], difference: int) -> tuple[str, str] | None:
    """Both ids and both sentences, if two values alone, of different groups, have this sum."""
    found = {}
    for first, second in itertools.combinations(slips, 2):
        for value in dict.fromkeys(extra for _, extra in first.values()):
            one, two = _alike(first, value), _alike(second, difference - value)
            if one and two:
                found[frozenset((value, difference - value))] = one, two
    if len(found) != 1:
        return None
    (one_id, a), (two_id, b) = next(iter(found.values()))
    return f"{one_id}+{two_id}", f"two things: (1) {a}; (2) {b}"
