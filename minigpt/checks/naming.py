"""Naming the mistake behind a wrong number: from listed hints, or from the ratios that units and copies leave.

Hints are {id: (sentence, value)}: in ``wrong`` the value that the mistake gives, in ``slips`` how much it adds.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from minigpt.memory.units import GB, GIB, MB, MIB

Hints = dict[str, tuple[str, Any]]

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


def diagnose(
    got: int, expected: int, wrong: Hints | None = None, slips: Hints | None = None, unit: str = "",
    others: Hints | None = None,
) -> tuple[str, str]:  # fmt: skip
    """(id, sentence) of what is wrong with ``got``: a listed mistake, one slip or two, a telling ratio, or by how much.

    ``others`` is as ``wrong``, and weaker than a single slip. Two slips have both ids, joined by "+".
    """
    id, sentence = _mistake(got, expected, wrong or {}, slips or {}, unit, others or {})
    return id, f"{sentence} (yours {got:,}, right {expected:,}{' ' + unit if unit else ''})"


def _mistake(got: int, expected: int, wrong: Hints, slips: Hints, unit: str, others: Hints) -> tuple[str, str]:
    for id, (sentence, value) in wrong.items():
        if value == got:
            return id, sentence
    slips = {id: (sentence, extra) for id, (sentence, extra) in slips.items() if extra}
    for size in (1, 2):
        for some in itertools.combinations(slips, size):
            if sum(slips[id][1] for id in some) == got - expected:
                return "+".join(some), ", and ".join(slips[id][0] for id in some)
        for id, (sentence, value) in others.items():
            if value == got:
                return id, sentence
    if got == 0:
        return "nothing-counted", "nothing is counted"
    if unit == "bytes":
        if abs(got * GB - expected * GIB) <= GB:  # to one byte, since somebody rounded
            return "gib-for-gb", "off by exactly 1.0737: GiB where GB was asked (2**30 in the place of 10**9)"
        if abs(got * GIB - expected * GB) <= GIB:
            return "gb-for-gib", "off by exactly 1.0737: GB where GiB was asked (10**9 in the place of 2**30)"
        for id, (sentence, (mine, right)) in BYTE_RATIOS.items():
            if got * right == expected * mine:
                return id, sentence
    difference = got - expected
    return ("too-many", f"{difference:,} too many") if difference > 0 else ("too-few", f"{-difference:,} too few")
