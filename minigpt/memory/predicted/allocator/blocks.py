"""Blocks in segments, and the pools of free ones: best fit and merging.

A segment is what the device gave at once (or, expandable, a room of addresses that pages are mapped into). Its blocks
are a chain without gaps. Source: ``Block``, ``BlockPool``, ``get_free_block`` and ``try_merge_blocks`` of
``c10/cuda/CUDACachingAllocator.cpp``.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from minigpt.memory.predicted.allocator.options import Options

# The states of a block: the first three are the words of torch's snapshots.
USED = "active_allocated"
WAITING = "active_awaiting_free"  # freed, but another stream may still use it
FREE = "inactive"
UNMAPPED = "unmapped"  # addresses of an expandable segment without memory


class Segment:
    """Addresses from ``address`` on, ``size`` of them. ``page`` is what an expandable one grows by, 0 for any other."""

    __slots__ = ("address", "head", "page", "pool", "size", "stream")

    def __init__(self, address: int, size: int, stream: int, pool: Pool, page: int = 0):
        self.address, self.size, self.stream, self.pool, self.page = address, size, stream, pool, page
        self.head = Block(address, size, self, UNMAPPED if page else FREE)

    def blocks(self) -> Iterator[Block]:
        """The blocks, by address."""
        block: Block | None = self.head
        while block is not None:
            yield block
            block = block.next


class Block:
    """A piece of a segment: ``requested`` of its ``size`` bytes were asked for."""

    __slots__ = ("address", "born", "next", "prev", "requested", "segment", "size", "state", "streams", "waits")

    def __init__(self, address: int, size: int, segment: Segment, state: str):
        self.address, self.size, self.segment, self.state = address, size, segment, state
        self.prev: Block | None = None
        self.next: Block | None = None
        self.requested = self.waits = self.born = 0
        self.streams: set[int] | None = None

    def __repr__(self) -> str:
        return f"Block({self.address:#x}, {self.size:,}, {self.state})"

    def cut(self, size: int) -> Block:
        """Keep the first ``size`` bytes; returns the rest as a block of its own, in the same state, in no pool."""
        rest = Block(self.address + size, self.size - size, self.segment, self.state)
        self.size = size
        rest.prev, rest.next, self.next = self, self.next, rest
        if rest.next is not None:
            rest.next.prev = rest
        return rest

    def absorb(self, right: Block) -> None:
        """Take the next block, which is in no pool, into this one."""
        self.size += right.size
        self.next = right.next
        if self.next is not None:
            self.next.prev = self

    @property
    def whole(self) -> bool:
        """Whether it is all of its segment."""
        return self.prev is None and self.next is None

    @property
    def room(self) -> int:
        """What it could grow to: its size, and the unmapped addresses behind it."""
        behind = self.next
        return self.size + (behind.size if behind is not None and behind.state is UNMAPPED else 0)


class Pool:
    """The free blocks of small or of large requests: by stream, each list sorted by size and then by address."""

    def __init__(self, small: bool):
        self.small = small
        self.free: dict[int, list[tuple[int, int, Block]]] = {}
        self.unmapped: dict[int, list[tuple[int, Block]]] = {}  # sorted by address
        self.searches = 0  # how often it was searched: the clock of garbage collection

    def add(self, block: Block) -> None:
        """Keep a block that is free or unmapped."""
        stream = block.segment.stream
        if block.state is FREE:
            block.born = self.searches
            insort(self.free.setdefault(stream, []), (block.size, block.address, block))
        else:
            insort(self.unmapped.setdefault(stream, []), (block.address, block))

    def remove(self, block: Block) -> None:
        stream = block.segment.stream
        if block.state is FREE:
            sorted_by_size = self.free[stream]
            del sorted_by_size[bisect_left(sorted_by_size, (block.size, block.address))]
        else:
            sorted_by_address = self.unmapped[stream]
            del sorted_by_address[bisect_left(sorted_by_address, (block.address,))]

    def merge(self, block: Block) -> Block:
        """Join a block, which is in no pool yet, with its neighbours in the same state, free or unmapped, and keep it.

        Returns the block that it is part of now.
        """
        left, right = block.prev, block.next
        if right is not None and right.state is block.state:
            self.remove(right)
            block.absorb(right)
        if left is not None and left.state is block.state:
            self.remove(left)
            left.absorb(block)
            block = left
        self.add(block)
        return block

    def take(self, size: int, stream: int, options: Options) -> Block | None:
        """The best fit for ``size`` on this stream, which leaves the pool; None if there is none."""
        self.searches += 1
        found = self.free.get(stream)
        if not found:
            return None
        at = bisect_left(found, (size,))
        if at < len(found) and found[at][2].segment.page:
            at = self._expandable(found, at, options)
        if at == len(found):
            return None
        block = found[at][2]
        limit = options.max_split_size
        if size < limit <= block.size:  # a large block is not given to a small request
            return None
        if limit <= size and block.size >= size + options.max_non_split_rounding:  # nor to one much smaller
            return None
        del found[at]
        return block

    def _expandable(self, found: list[tuple[int, int, Block]], at: int, options: Options) -> int:
        """Which block fits best if the first that fits can grow: the one that can grow least.

        If the option was switched off since, blocks of expandable segments are passed over.
        """
        if not options.expandable_segments:
            while at < len(found) and found[at][2].segment.page:
                at += 1
            return at
        while at + 1 < len(found) and found[at][2].segment.page and found[at + 1][2].room < found[at][2].room:
            at += 1
        return at

    def freed(self) -> list[Block]:
        """All free blocks, by stream, size and address."""
        return [block for stream in sorted(self.free) for _, _, block in self.free[stream]]
