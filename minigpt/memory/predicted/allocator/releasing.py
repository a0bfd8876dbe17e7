"""What goes back to the device, and when: garbage collection, a full device, ``empty_cache``.

Only a block that is all of its segment can go back; of an expandable segment, whole pages. Source:
``garbage_collect_cached_blocks``, ``release_available_cached_blocks``, ``release_cached_blocks``, ``release_blocks``
and ``release_block`` of ``c10/cuda/CUDACachingAllocator.cpp``.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from typing import TYPE_CHECKING

from minigpt.memory.predicted.allocator import expandable
from minigpt.memory.predicted.allocator.blocks import Block, Pool

if TYPE_CHECKING:
    from minigpt.memory.predicted.allocator.caching import Allocator


def release(allocator: Allocator, block: Block) -> None:
    """Give a segment back whose only block is free."""
    segment = block.segment
    segment.pool.remove(block)
    del allocator.segments[segment.address]
    allocator.device.release(segment.address, segment.size)
    allocator.statistics.segments.current -= 1
    allocator.statistics.reserved.current -= segment.size


def release_cached(allocator: Allocator, pool: Pool) -> None:
    """Give back every segment of the pool without a block in use, and every such page of its expandable segments."""
    blocks = pool.freed()
    for block in blocks:
        if not block.segment.page and block.whole:
            release(allocator, block)
    for block in blocks:
        if block.segment.page:
            expandable.unmap_pages(allocator, block)


def release_enough(allocator: Allocator, pool: Pool, size: int, stream: int) -> bool:
    """The first measure on a full device, only with ``max_split_size_mb``: free blocks that nothing was split from.

    The smallest that is large enough goes back; with none, the largest ones until they sum to the size. Returns whether
    it was enough.
    """
    limit = allocator.options.max_split_size
    if limit == sys.maxsize:
        return False
    wanted = max(size, limit)
    found = pool.free.get(stream, [])
    at = bisect_left(found, (wanted,))
    if at < len(found) and not found[at][2].segment.page:
        release(allocator, found[at][2])
        return True
    released = 0
    for _, _, block in reversed(found[:at]):
        if released >= wanted or block.size < limit:
            break
        if not block.segment.page:
            released += block.size
            release(allocator, block)
    return released >= wanted


def collect_garbage(allocator: Allocator) -> None:
    """Before a new segment, once more is reserved than the threshold allows: give back what was not used for long.

    The age of a free block is how often its pool was searched since it became free. Blocks older than the average go,
    then those older than the average of the rest, until what is reserved is under the threshold. Large pool only.
    """
    allowed, threshold = allocator.allowed(), allocator.options.garbage_collection_threshold
    if allowed is None or not threshold:
        return
    excess = allocator.statistics.reserved.current - int(threshold * allowed)
    pool = allocator.large
    blocks = [block for block in pool.freed() if block.whole and not block.segment.page]
    while excess > 0 and blocks:
        mean = sum(pool.searches - block.born for block in blocks) / len(blocks)
        old = [block for block in blocks if pool.searches - block.born >= mean]
        for block in old:
            excess -= block.size
            release(allocator, block)
        blocks = [block for block in blocks if pool.searches - block.born < mean]
