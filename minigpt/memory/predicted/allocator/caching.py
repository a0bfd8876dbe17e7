"""The allocator: allocate, free, streams. The rules are told in the package's docstring.

Source: ``DeviceCachingAllocator::malloc``, ``alloc_block``, ``alloc_found_block``, ``free``, ``recordStream`` and
``process_events`` of ``c10/cuda/CUDACachingAllocator.cpp``.
"""

from __future__ import annotations

from collections import deque

from minigpt.memory.predicted.allocator import expandable, full, releasing
from minigpt.memory.predicted.allocator.blocks import FREE, USED, WAITING, Block, Pool, Segment
from minigpt.memory.predicted.allocator.device import Device
from minigpt.memory.predicted.allocator.options import SMALL_SIZE, Options
from minigpt.memory.predicted.allocator.statistics import Statistics


class Allocator:
    """The caching allocator of one device. ``event`` numbers the calls of ``allocate`` and ``free``, from 1.

    Raises ValueError for a memory fraction of a device whose capacity is not known.
    """

    def __init__(self, options: Options | None = None, device: Device | None = None):
        self.options = options or Options()
        self.device = device or Device()
        self.small, self.large = Pool(small=True), Pool(small=False)
        self.segments: dict[int, Segment] = {}  # by address
        self.statistics = Statistics()
        self.event = 0
        self.waiting: dict[int, deque[Block]] = {}  # by stream: freed blocks whose event is queued on it
        self.passed: dict[int, int] = {}  # how many of those events came to pass, and nobody looked yet
        self.allowed()

    def allowed(self) -> int | None:
        """How much may be reserved (``per_process_memory_fraction``); None: all there is."""
        fraction = self.options.per_process_memory_fraction
        if fraction == 1.0:
            return None
        if self.device.capacity is None:
            raise ValueError(f"per_process_memory_fraction is {fraction}; it must be 1 where no capacity is known")
        return int(fraction * self.device.capacity)

    def allocate(self, nbytes: int, stream: int = 0) -> Block:
        """A block for ``nbytes`` (at least 1), for use on ``stream``.

        Raises ``OutOfMemoryError``, with torch's sentence, if the device is full; ValueError for no bytes, for which
        torch asks no allocator.
        """
        if nbytes < 1:
            raise ValueError(f"nbytes is {nbytes}; it must be at least 1")
        self.event += 1
        if self.passed:
            self.look_at_events()
        size = self.options.round(nbytes)
        pool = self.small if size <= SMALL_SIZE else self.large
        block = pool.take(size, stream, self.options) or self._grow(pool, size, stream)
        if self.options.splits(size, block.size - size, pool.small):
            pool.add(block.cut(size))
        block.state, block.requested = USED, nbytes
        self.count(block, nbytes)
        return block

    def count(self, block: Block, nbytes: int) -> None:
        """A block of which ``nbytes`` were asked for came into use."""
        statistics, event = self.statistics, self.event
        statistics.allocated.add(block.size, event)
        statistics.active.add(block.size, event)
        statistics.requested.add(nbytes, event)

    def _grow(self, pool: Pool, size: int, stream: int) -> Block:
        """A block from a new segment, of at least ``size``, in no pool."""
        releasing.collect_garbage(self)
        block = self._new_segment(pool, size, stream)
        if block is None and releasing.release_enough(self, pool, size, stream):
            block = self._new_segment(pool, size, stream)
        if block is None:
            self.empty_cache()
            self.statistics.retries += 1
            block = self._new_segment(pool, size, stream)
        if block is None:
            self.statistics.ooms += 1
            raise full.OutOfMemoryError(full.sentence(self, self.options.segment_size(size)))
        return block

    def _new_segment(self, pool: Pool, size: int, stream: int) -> Block | None:
        wanted = self.options.segment_size(size)
        allowed = self.allowed()
        if allowed is not None and self.statistics.reserved.current + wanted > allowed:
            return None
        if self.options.expandable_segments:
            return expandable.grow(self, pool, size, stream)
        address = self.device.malloc(wanted)
        if address is None:
            return None
        segment = self.segments[address] = Segment(address, wanted, stream, pool)
        self.statistics.segments.add(1, self.event)
        self.statistics.reserved.add(wanted, self.event)
        return segment.head

    def free(self, block: Block) -> None:
        """Give a block back. Raises ValueError if it is not in use.

        If other streams used it, it waits until what they have queued now is done (``finish``).
        """
        if block.state is not USED:
            raise ValueError(f"block is {block!r}; it must be in use")
        self.event += 1
        self.statistics.allocated.current -= block.size
        if block.streams:
            block.state, block.waits = WAITING, len(block.streams)
            for stream in block.streams:
                self.waiting.setdefault(stream, deque()).append(block)
            block.streams = None
        else:
            self._free(block)

    def _free(self, block: Block) -> None:
        self.statistics.active.current -= block.size
        self.statistics.requested.current -= block.requested
        block.state, block.requested = FREE, 0
        block.segment.pool.merge(block)

    def record_stream(self, block: Block, stream: int) -> None:
        """``tensor.record_stream``: the block is used on another stream too. Raises ValueError if it is not in use."""
        if block.state is not USED:
            raise ValueError(f"block is {block!r}; it must be in use")
        if stream != block.segment.stream:
            block.streams = (block.streams or set()) | {stream}

    def finish(self, stream: int | None = None) -> None:
        """The device has done all that is queued on ``stream`` (None: on all). The next request notices it."""
        for each in list(self.waiting) if stream is None else [stream]:
            if each in self.waiting:
                self.passed[each] = len(self.waiting[each])

    def look_at_events(self) -> None:
        """Free the blocks whose events have all come to pass."""
        for stream, count in self.passed.items():
            queue = self.waiting[stream]
            for _ in range(count):
                block = queue.popleft()
                block.waits -= 1
                if block.waits == 0:
                    self._free(block)
            if not queue:
                del self.waiting[stream]
        self.passed.clear()

    def empty_cache(self) -> None:
        """``torch.cuda.empty_cache``: wait for all streams, then give back the segments and pages that nobody uses."""
        self.finish()
        self.look_at_events()
        releasing.release_cached(self, self.large)
        releasing.release_cached(self, self.small)

    @property
    def inactive_split(self) -> int:
        """Free bytes that cannot go back, because a part of their segment is in use (not of expandable segments)."""
        blocks = self.small.freed() + self.large.freed()
        return sum(block.size for block in blocks if not block.segment.page and not block.whole)
