"""Judging the best fit: the truth is the course's ``Pool.take``.

finds(best_fit, (seed, count))        ``best_fit(blocks, pool, size)`` on random blocks: an element of them, or None
"""

from __future__ import annotations

import random
from collections.abc import Callable

from minigpt.checks.allocating import asking  # noqa: F401  closes the book
from minigpt.checks.closing import knows
from minigpt.checks.comparing import show
from minigpt.checks.probes import allocating
from minigpt.checks.verdict import Wrong
from minigpt.memory.predicted.allocator import Options, Pool, Segment
from minigpt.memory.predicted.allocator.blocks import FREE, USED
from minigpt.memory.units import KIB, MIB

knows(__name__)
SIZES = {
    "small": [512, 4 * KIB, 96 * KIB, 512 * KIB, 2 * MIB],
    "large": [2 * MIB, 3 * MIB, 8 * MIB, 14 * MIB, 20 * MIB],
}


def finds(best_fit: Callable, case: tuple[int, int]) -> None:
    blocks = scene(*case)
    for pool, sizes in SIZES.items():
        for size in [sizes[0] // 2, sizes[1], sizes[2] - 512, sizes[3], MIB if pool == "small" else 30 * MIB]:
            said = allocating.found(best_fit, blocks, pool, size)
            _compare(said["block"], taken(blocks, pool, size), blocks, pool, size)
            if said["block"] is not None and said["itself"] is not True:
                what = f"{size:,} bytes of the {pool} pool"
                raise Wrong(
                    "copy", f"{what}: a copy of the right block is given; allocate will change the block itself"
                )


def scene(seed: int, count: int) -> list[dict]:
    """Random blocks of both pools, a segment each, in the order of their addresses; several have one size."""
    draw = random.Random(seed)
    blocks, address = [], 0
    for _ in range(count):
        pool = draw.choice(list(SIZES))
        size = draw.choice(SIZES[pool])
        blocks.append(dict(address=address, size=size, segment=address, pool=pool, free=draw.random() < 0.6))
        address += 32 * MIB
    return blocks


def taken(blocks: list[dict], pool: str, size: int) -> dict | None:
    """What the course's pool gives."""
    kept, by_address = Pool(small=pool == "small"), {block["address"]: block for block in blocks}
    for block in blocks:
        if block["pool"] == pool and block["free"]:
            segment = Segment(block["address"], block["size"], 0, kept)
            segment.head.state = FREE
            kept.add(segment.head)
    found = kept.take(size, 0, Options())
    assert found is None or found.state is not USED
    return by_address[found.address] if found else None


def _compare(mine, right: dict | None, blocks: list[dict], pool: str, size: int) -> None:
    what = f"{size:,} bytes of the {pool} pool"
    if mine is None and right is None:
        return
    if mine is None:
        assert right is not None
        raise Wrong("none", f"{what}: a free block of {right['size']:,} would do, and None is given")
    if mine not in blocks:
        raise Wrong("no-block", f"{what}: {show(mine)} is given; one of the blocks, or None, is asked for")
    if mine == right:
        return
    given = f"{what}: a block of {mine['size']:,}"
    if not mine["free"]:
        raise Wrong("in-use", f"{given} that is in use is given")
    if mine["pool"] != pool:
        raise Wrong("pools-lend", f"{given} of the {mine['pool']} pool is given; pools do not lend to each other")
    if mine["size"] < size:
        raise Wrong("too-small", f"{given} is given, which is too small")
    assert right is not None
    if mine["size"] == right["size"]:
        raise Wrong("other-address", f"{given} is given; of equal ones it is the one at the lowest address")
    fits = [b for b in blocks if b["free"] and b["pool"] == pool and b["size"] >= size]
    if mine == fits[0]:
        raise Wrong("first-fit", f"{given} is given, the first that is large enough; the smallest one is asked for")
    if mine["size"] == max(b["size"] for b in fits):
        raise Wrong("worst-fit", f"{given} is given, the largest; the smallest that is large enough is asked for")
    raise Wrong("not-smallest", f"{given} is given; one of {right['size']:,} is large enough")
