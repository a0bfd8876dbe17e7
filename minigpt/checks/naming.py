"""Naming the mistake behind a wrong number: from listed hints, or from the ratios that units and copies leave.

Hints are {id: (sentence, value)}: in ``wrong`` the value that the mistake gives, in ``slips`` how much it adds.
Slips may come in groups, a list of Hints: those of one group are about one thing, so nobody makes two of them at once.

One slip explains a difference, or a telling ratio; or two slips of different groups do, where no one thing does.
Several that leave the same difference are all named, with "or", since nobody can tell them apart; where several pairs
leave it, none is.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
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
    "eighth": ("an eighth: there are 8 bits in a byte, and these bytes were divided by 8", (1, 8)),
    "twice": ("twice too much: 4 bytes a number where there are 2, or a copy that is not there", (2, 1)),
    "half": ("half: 2 bytes a number where there are 4, or one of two copies is missing", (1, 2)),
    "four-times": ("4 times too much: count the bytes of one number, and the copies, again", (4, 1)),
    "quarter": ("a quarter: that looks like a number of elements, each of which takes 4 bytes", (1, 4)),
}


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
    others: Hints | None = None,
) -> tuple[str, str]:  # fmt: skip
    """(id, sentence) of what is wrong with ``got``: a listed mistake, a slip, a ratio, two slips, or how much.

    ``others`` is as ``wrong``, and weaker than a single slip. Two slips have both ids, joined by "+".
    """
    id, sentence = _mistake(got, expected, wrong or {}, groups(slips or {}), unit, others or {})
    return id, f"{sentence} (yours {got:,}, right {expected:,}{' ' + unit if unit else ''})"


def _mistake(got: int, expected: int, wrong: Hints, slips: list[Hints], unit: str, others: Hints) -> tuple[str, str]:
    difference = got - expected
    single = {id: hint for group in slips for id, hint in group.items()}
    found = _alike(wrong, got) or _alike(single, difference) or _alike(others, got)
    found = found or _ratio(got, expected, unit) or _two(slips, difference)
    if found:
        return found
    return ("too-many", f"{difference:,} too many") if difference > 0 else ("too-few", f"{-difference:,} too few")


def _ratio(got: int, expected: int, unit: str) -> tuple[str, str] | None:
    if got == 0:
        return "nothing-counted", "nothing is counted"
    if unit != "bytes":
        return None
    if abs(got * GB - expected * GIB) <= GB:  # to one byte, since somebody rounded
        return "gib-for-gb", "off by exactly 1.0737: GiB where GB was asked (2**30 in the place of 10**9)"
    if abs(got * GIB - expected * GB) <= GIB:
        return "gb-for-gib", "off by exactly 1.0737: GB where GiB was asked (10**9 in the place of 2**30)"
    for id, (sentence, (mine, right)) in BYTE_RATIOS.items():
        if got * right == expected * mine:
            return id, sentence
    return None


def _alike(hints: Hints, value: int) -> tuple[str, str] | None:
    """The first id with this value, and the sentences of all that have it."""
    found = {id: sentence for id, (sentence, other) in hints.items() if other == value}
    first, *more = dict.fromkeys(found.values()) or [""]
    return (next(iter(found)), f"{first} (or: {'; '.join(more)})" if more else first) if found else None


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
    return f"{one_id}+{two_id}", f"two things: {a}, and {b}"
