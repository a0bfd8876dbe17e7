"""Judging the four rules about sizes: the truth is the course's ``Options``.

rounds(block_size, nbytes)             what a request becomes
chooses(pool_of, size)                 "small" or "large"
takes(segment_size, size)              a new segment
splits(split_off, (size, block))       what is split off a free block
"""

from __future__ import annotations

from collections.abc import Callable

from minigpt.checks.allocating import asking  # noqa: F401  closes the book
from minigpt.checks.closing import by_hand, knows
from minigpt.checks.comparing import choice, integer
from minigpt.checks.naming import Hints, given
from minigpt.memory.predicted.allocator import Options
from minigpt.memory.units import MIB

knows(__name__)


def rounds(block_size: Callable, nbytes: int) -> None:
    mine = by_hand(block_size, nbytes)
    integer(mine, Options().round(nbytes), f"a request of {nbytes:,} bytes", slips=round_slips(nbytes))


def chooses(pool_of: Callable, size: int) -> None:
    mine = by_hand(pool_of, size)
    right, other = ("small", "large") if size <= MIB else ("large", "small")
    edges = {
        MIB: ("edge", "up to 1 MiB is small, and exactly 1 MiB is"),
        1_000_448: ("decimal", "1 MiB is 1,048,576 bytes"),
    }
    id, sentence = edges.get(size, ("other-pool", "up to 1 MiB is small, and everything above is large"))
    choice(mine, right, f"the pool of {size:,} bytes", wrong={id: (sentence, other)})


def takes(segment_size: Callable, size: int) -> None:
    mine = by_hand(segment_size, size)
    integer(mine, Options().segment_size(size), f"a segment for {size:,} bytes", slips=segment_slips(size))


def splits(split_off: Callable, case: tuple[int, int]) -> None:
    mine = by_hand(split_off, *case)
    size, block = case
    rest = block - size
    right = rest if Options().splits(size, rest, size <= MIB) else 0
    integer(mine, right, f"{size:,} bytes out of a block of {block:,}", slips=split_slips(size, rest))


# ---------------------------------------------------------------- what mistakes add, one at a time


def round_slips(nbytes: int) -> list[Hints]:
    return _added(Options().round(nbytes), {
        "not-rounded": ("a block is a multiple of 512 bytes; this is the request as it came", nbytes),
        "rounded-down": ("it is rounded down; a block must hold its request", nbytes // 512 * 512),
        "nearest": ("it is rounded to the nearest multiple of 512; a block must hold its request",
                    (nbytes + 256) // 512 * 512),
        "one-too-many": ("it is a multiple of 512 already, and stays as it is", (nbytes // 512 + 1) * 512),
        "other-multiple": ("it is rounded to another multiple; blocks are multiples of 512 bytes",
                           -(-nbytes // 256) * 256),
    })  # fmt: skip


def segment_slips(size: int) -> list[Hints]:
    own = -(-size // (2 * MIB)) * 2 * MIB
    large = {
        "not-a-multiple": ("a segment is a multiple of 2 MiB; this is the request's own size", size),
        "two": ("2 MiB is the segment of the small pool", 2 * MIB),
    }
    if size <= MIB:
        table = {"twenty": ("20 MiB is the segment of the large pool; the small pool takes 2", 20 * MIB),
                 "not-a-multiple": large["not-a-multiple"]}  # fmt: skip
    elif size < 10 * MIB:
        table = large | {
            "own-size": ("less than 10 MiB takes 20 MiB, where the next requests find room, and no segment of its own",
                         own if own > 2 * MIB else 0),
            "ten": ("the segment for less than 10 MiB has 20 MiB", 10 * MIB if own < 10 * MIB else 0),
        }  # fmt: skip
    else:
        table = large | {
            "ten-takes-twenty": ("10 MiB and more have a segment of their own size; only less than 10 MiB takes 20",
                                 20 * MIB),
            "one-too-many": ("it is a multiple of 2 MiB already", (size // (2 * MIB) + 1) * 2 * MIB),
            "rounded-down": ("it is rounded down to a multiple of 2 MiB; a segment must hold its request",
                             size // (2 * MIB) * 2 * MIB),
        }  # fmt: skip
    return _added(Options().segment_size(size), table)


def split_slips(size: int, rest: int) -> list[Hints]:
    small = size <= MIB
    right = rest if Options().splits(size, rest, small) else 0
    asked = {"the-size": ("what is split off is asked for, and not what is given", size)}
    if right:
        never = ("in the small pool any rest is split off" if small else "more than 1 MiB is split off", 0)
        return _added(right, {"large-rule" if small and rest <= MIB else "never-split": never} | asked)
    id = "edge" if rest == MIB else "small-rule"
    kept = "exactly 1 MiB is not: it must be more" if rest == MIB else "in the large pool only more than 1 MiB is"
    return _added(right, {id: (f"nothing is split off here: {kept}", rest)} | asked)


def _added(right: int, table: Hints) -> list[Hints]:
    """One group of slips, from what each mistake gives."""
    return [given(table, lambda value: value - right)]
