"""``expandable_segments``: one segment a pool and stream, whose addresses are reserved at once and filled by pages.

A large segment grows by pages of 20 MiB, a small one by 2 MiB. A request that no free block holds goes to the lowest
address where free and unmapped blocks together are long enough: as a rule the end, where the last free block is kept
and only what it lacks is mapped. So no segment is left too small for the next size, which is what the option is for.
Source: ``find_expandable_block``, ``map_block``, ``try_allocate_expandable_block`` and ``unmap_block`` of
``c10/cuda/CUDACachingAllocator.cpp``, and ``ExpandableSegment`` there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from minigpt.memory.predicted.allocator.blocks import FREE, UNMAPPED, Block, Pool, Segment

if TYPE_CHECKING:
    from minigpt.memory.predicted.allocator.caching import Allocator


def grow(allocator: Allocator, pool: Pool, size: int, stream: int) -> Block | None:
    """A free block of at least ``size``, out of its pool; None if the device is full. What was mapped so far stays."""
    start = lowest(pool, size, stream) or reserve(allocator, pool, stream)
    block = map_pages(allocator, start, min(start.size, size)) if start.state is UNMAPPED else start
    while block is not None and block.size < size:
        behind = block.next
        assert behind is not None and behind.state is UNMAPPED, "no room behind a block that was found to have it"
        block = map_pages(allocator, behind, min(behind.size, size - block.size))
    if block is not None:
        pool.remove(block)
    return block


def lowest(pool: Pool, size: int, stream: int) -> Block | None:
    """Where, at the lowest address, free and unmapped blocks one after the other hold ``size``."""
    for _, block in pool.unmapped.get(stream, ()):
        first = block.prev if block.prev is not None and block.prev.state is FREE else block
        length = 0
        behind: Block | None = first
        while behind is not None and behind.state in (FREE, UNMAPPED) and length < size:
            length += behind.size
            behind = behind.next
        if length >= size:
            return first
    return None


def reserve(allocator: Allocator, pool: Pool, stream: int) -> Block:
    """A new segment, of addresses alone."""
    page = allocator.options.page_size(pool.small)
    address, room = allocator.device.reserve(page)
    segment = allocator.segments[address] = Segment(address, room, stream, pool, page)
    pool.add(segment.head)
    return segment.head


def map_pages(allocator: Allocator, block: Block, size: int) -> Block | None:
    """Map the pages that hold the first ``size`` bytes of an unmapped block.

    Returns the free block that they are part of, in its pool; None if the device is full.
    """
    segment, pool = block.segment, block.segment.pool
    end = block.address + size - segment.address
    size = -(-end // segment.page) * segment.page - (block.address - segment.address)
    if not allocator.device.map(block.address, size):
        return None
    pool.remove(block)
    if size < block.size:
        pool.add(block.cut(size))
    block.state = FREE
    allocator.statistics.reserved.add(size, allocator.event)
    return pool.merge(block)


def unmap_pages(allocator: Allocator, block: Block) -> None:
    """Give back the whole pages inside a free block; what lies before and behind them stays free."""
    segment, pool = block.segment, block.segment.pool
    offset = block.address - segment.address
    begin = -(-offset // segment.page) * segment.page
    end = (offset + block.size) // segment.page * segment.page
    if begin >= end:
        return
    pool.remove(block)
    if begin > offset:
        inside = block.cut(begin - offset)
        pool.add(block)
        block = inside
    if block.size > end - begin:
        pool.add(block.cut(end - begin))
    block.state = UNMAPPED
    allocator.device.unmap(block.address, block.size)
    allocator.statistics.reserved.current -= block.size
    merged = pool.merge(block)
    if merged.whole:
        pool.remove(merged)
        del allocator.segments[segment.address]
