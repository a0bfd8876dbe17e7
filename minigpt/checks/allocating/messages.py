"""Judging who reads torch's out-of-memory sentence: it is made by the course's allocator on a device that is full.

reads(read_message, case)          ``read_message(message)``: six numbers in bytes, as exact as the sentence is
derives(diagnose, case)            ``diagnose(numbers)``: what follows from them
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from minigpt.checks.allocating import asking  # noqa: F401  closes the book
from minigpt.checks.closing import by_hand, knows
from minigpt.checks.comparing import show, whole
from minigpt.checks.naming import Hints, given
from minigpt.checks.verdict import Wrong
from minigpt.memory.predicted.allocator import Allocator, Device, Options, OutOfMemoryError
from minigpt.memory.predicted.allocator.full import readable
from minigpt.memory.units import GB, GIB, KIB, MB, MIB

knows(__name__)
FIELDS = ("tried", "capacity", "free", "in_use", "allocated", "unallocated")
UNITS = {"bytes": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB}


class Case(NamedTuple):
    """A device, what this process and others hold of it outside of torch, and what is asked: in bytes.

    A number in ``requests`` is a request, ``-n`` frees the n-th. ``fraction``: which part may be reserved.
    """

    capacity: int
    context: int
    others: int
    requests: tuple[int, ...]
    fraction: float = 1.0


def reads(read_message: Callable, case: Case) -> None:
    mine = by_hand(read_message, told(case)[0])
    right = told(case)[1]
    _fields(mine, FIELDS)
    for name in FIELDS:
        number, truth = whole(mine[name], name), right[name]
        if number != truth:
            for id, (sentence, value) in _mistakes(name, right).items():
                if number == value:
                    raise Wrong(id, f"{name}: {sentence}: yours {number:,}, right {truth:,} bytes")
            raise Wrong("differs", f"{name}: {number:,}, and should be {truth:,} bytes: {show(readable(truth))}")


def derives(diagnose: Callable, case: Case) -> None:
    _, numbers = told(case)
    mine = by_hand(diagnose, numbers)
    right = derived(numbers)
    _fields(mine, tuple(right))
    for name, truth in right.items():
        if name == "fragmented":
            if type(mine[name]).__name__ not in ("bool", "bool_"):
                raise Wrong("wrong-type", f"fragmented: {show(mine[name])}; True or False is asked for")
            if bool(mine[name]) is not truth:
                raise Wrong("fragmented", f"fragmented: {show(mine[name])}; {_said(numbers)}")
            continue
        number = whole(mine[name], name)
        if number != truth:
            for id, (sentence, value) in _wrong_sums(name, numbers).items():
                if number == value:
                    raise Wrong(id, f"{name}: {sentence}")
            raise Wrong("differs", f"{name}: {number:,}, and should be {truth:,} bytes")


# ---------------------------------------------------------------- truths


def told(case: Case) -> tuple[str, dict[str, int]]:
    """The sentence, and the numbers in it, as exact as it has them. RuntimeError if the last request finds room."""
    device = Device(case.capacity, case.context, case.others)
    allocator = Allocator(Options(per_process_memory_fraction=case.fraction), device)
    *before, last = case.requests
    blocks = []
    for number in before:
        if number > 0:
            blocks.append(allocator.allocate(number))
        else:
            allocator.free(blocks[-number - 1])
    try:
        allocator.allocate(last)
    except OutOfMemoryError as error:
        statistics = allocator.statistics
        allocated, reserved = statistics.allocated.current, statistics.reserved.current
        exact = (allocator.options.segment_size(allocator.options.round(last)), case.capacity, device.free,
                 case.context + device.taken, allocated, reserved - allocated)  # fmt: skip
        return str(error), {name: as_printed(nbytes) for name, nbytes in zip(FIELDS, exact)}
    raise RuntimeError(f"{case}: it fits")


def as_printed(nbytes: int) -> int:
    """``nbytes`` as exact as a sentence with two digits has it, to the nearest byte."""
    number, unit = readable(nbytes).split()
    return round(float(number) * UNITS[unit])


def derived(numbers: dict[str, int]) -> dict[str, int | bool]:
    reserved = numbers["allocated"] + numbers["unallocated"]
    return {
        "reserved": reserved,
        "outside": numbers["in_use"] - reserved,
        "fragmented": numbers["tried"] <= numbers["free"] + numbers["unallocated"],
    }


# ---------------------------------------------------------------- mistakes


def _fields(mine, names: tuple[str, ...]) -> None:
    if not isinstance(mine, dict):
        raise Wrong("wrong-type", f"{show(mine)} is no dictionary; one with the keys {', '.join(names)} is asked for")
    if set(mine) != set(names):
        raise Wrong(
            "wrong-keys", f"the keys are {', '.join(map(str, mine)) or 'none'}; {', '.join(names)} are asked for"
        )


def _mistakes(name: str, right: dict[str, int]) -> Hints:
    number, unit = readable(right[name]).split()
    decimal = {"KiB": 1000, "MiB": MB, "GiB": GB}.get(unit, 1)
    others = {f"figure-of-{other}": (f"that is the figure of {other}", right[other])
              for other in FIELDS if right[other] != right[name]}  # fmt: skip
    scaled = given(
        {"decimal": ("GiB, MiB and KiB are powers of 1024", decimal), "no-unit": ("the unit is not looked at", 1),
         "always-gib": ("each number has its own unit; not all are GiB", GIB),
         "always-mib": ("each number has its own unit; not all are MiB", MIB)},
        lambda size: round(float(number) * size),
    )  # fmt: skip
    cut = {"cut": ("what stands behind the point is lost", int(float(number)) * UNITS[unit])}
    cut["truncated"] = ("it is cut to whole bytes; it is to be rounded", int(float(number) * UNITS[unit]))
    return {id: hint for id, hint in (scaled | cut | others).items() if hint[1] != right[name]}


def _wrong_sums(name: str, n: dict[str, int]) -> Hints:
    return {
        "reserved": {
            "allocated-alone": ("what is unallocated is reserved, too", n["allocated"]),
            "with-context": ("that is all that the process holds; reserved is PyTorch's part", n["in_use"]),
            "subtracted": ("unallocated is a part of reserved beside allocated; add the two",
                           n["allocated"] - n["unallocated"]),
        },
        "outside": {
            "without-unallocated": ("what is unallocated is PyTorch's, too", n["in_use"] - n["allocated"]),
            "all": ("that is all that the process holds, with PyTorch's part", n["in_use"]),
        },
    }[name]  # fmt: skip


def _said(numbers: dict[str, int]) -> str:
    tried, free, unallocated = (readable(numbers[name]) for name in ("tried", "free", "unallocated"))
    more = "no more than" if derived(numbers)["fragmented"] else "more than"
    return f"{tried} is {more} what is free, {free}, and reserved but unallocated, {unallocated}, together"
