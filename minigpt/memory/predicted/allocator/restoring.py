"""An allocator in the state in which a recording or a snapshot found it: segments, and the blocks in use in each."""

from __future__ import annotations

from collections.abc import Iterable

from minigpt.memory.predicted.allocator.blocks import FREE, USED, Block, Segment
from minigpt.memory.predicted.allocator.caching import Allocator


def adopt(
    allocator: Allocator,
    ranges: Iterable[tuple[int, int]],
    used: Iterable[tuple[int, int, int]],
    *,
    small: bool,
    stream: int = 0,
    room: int = 0,
) -> list[Block]:
    """Take over one segment. Returns its blocks in use, by address.

    ``ranges`` are the addresses and sizes that are mapped: one for a usual segment; an expandable one, whose addresses
    from the lowest on are ``room`` bytes, may have several. ``used`` holds address, size and requested bytes of each
    block in use; what lies between is free. Raises ValueError where they overlap or lie outside.
    """
    ranges, used = sorted(ranges), sorted(used)
    start, pool = ranges[0][0], allocator.small if small else allocator.large
    page = allocator.options.page_size(small) if room else 0
    segment = allocator.segments[start] = Segment(start, room or ranges[0][1], stream, pool, page)
    pieces = [(address, size, FREE, 0) for address, size in ranges] if room else []
    pieces += [(address, size, USED, requested) for address, size, requested in used]
    block = segment.head
    for address, size, state, requested in sorted(pieces, key=lambda piece: (piece[0], piece[2] is USED)):
        block = piece_of(block, address, size)
        block.state, block.requested = state, requested
    mapped = sum(size for _, size in ranges)
    allocator.device.taken += mapped
    allocator.statistics.reserved.add(mapped, allocator.event)
    allocator.statistics.segments.add(0 if room else 1, allocator.event)
    for block in segment.blocks():
        if block.state is USED:
            allocator.count(block, block.requested)
        else:
            pool.add(block)
    return [block for block in segment.blocks() if block.state is USED]


def piece_of(block: Block, address: int, size: int) -> Block:
    """``size`` bytes at ``address``, cut from this block or from one behind it."""
    while block.next is not None and address >= block.next.address:
        block = block.next
    if block.state is USED or address < block.address or address + size > block.address + block.size:
        raise ValueError(f"a block at {address} of {size} bytes is in use twice, or outside of its segment")
    if address > block.address:
        block = block.cut(address - block.address)
    if size < block.size:
        block.cut(size)
    return block
