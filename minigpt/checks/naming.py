"""Naming the mistake behind a wrong number: from listed hints, or from the ratios that units and copies leave."""

from __future__ import annotations

import itertools

from minigpt.memory.units import GB, GIB, MB, MIB

FACTORS = {0: "it is zero everywhere", -1: "its sign is turned round", 2: "it is twice what it should be",
           0.5: "it is half of what it should be", 4: "it is 4 times what it should be",
           0.25: "it is a quarter of what it should be"}  # fmt: skip

LARGE_UNITS = ((GB, "GB"), (GIB, "GiB"), (MB, "MB"), (MIB, "MiB"))

BYTE_RATIOS = (  # (got, expected) in the ratio of these, and why
    (8, 1, "8 times too much: those are bits, and bytes are asked for"),
    (1, 8, "an eighth: there are 8 bits in a byte, and these bytes were divided by 8"),
    (2, 1, "twice too much: 4 bytes a number where there are 2, or a copy that is not there"),
    (1, 2, "half: 2 bytes a number where there are 4, or one of two copies is missing"),
    (4, 1, "4 times too much: count the bytes of one number, and the copies, again"),
    (1, 4, "a quarter: that looks like a number of elements, each of which takes 4 bytes"),
)


def diagnose(got: int, expected: int, wrong=None, slips=None, unit: str = "", others=None) -> str:
    """What is wrong with ``got``, in words: a listed mistake, one or two slips, a telling ratio, or the difference.

    ``others`` is as ``wrong``, and weaker than a single slip.
    """
    numbers = f" (yours {got:,}, right {expected:,}{' ' + unit if unit else ''})"
    if wrong and got in wrong:
        return wrong[got] + numbers
    slips = {mistake: delta for mistake, delta in (slips or {}).items() if delta}
    for size in (1, 2):
        for some in itertools.combinations(slips, size):
            if sum(slips[mistake] for mistake in some) == got - expected:
                return ", and ".join(some) + numbers
        if others and got in others:
            return others[got] + numbers
    if got == 0:
        return f"nothing is counted{numbers}"
    if unit == "bytes":
        if abs(got * GB - expected * GIB) <= GB:  # to one byte, since somebody rounded
            return f"off by exactly 1.0737: GiB where GB was asked (2**30 in the place of 10**9){numbers}"
        if abs(got * GIB - expected * GB) <= GIB:
            return f"off by exactly 1.0737: GB where GiB was asked (10**9 in the place of 2**30){numbers}"
        for mine, truth, mistake in BYTE_RATIOS:
            if got * truth == expected * mine:
                return mistake + numbers
    difference = got - expected
    return f"{abs(difference):,} too {'many' if difference > 0 else 'few'}{numbers}"
