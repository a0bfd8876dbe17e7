"""What stands for the device: how much memory it has left, and which address a new segment gets.

Addresses are the driver's choice, in no source. They decide only between free blocks of one size: the lower address is
taken first. Recorded allocators went down more often than up, so each segment lies below the one before; a freed
address is not given again. A replay puts a device in this one's place that answers with what was recorded.
"""

from __future__ import annotations

from minigpt.memory.predicted.allocator.options import ROUND_LARGE

TOP = 1 << 47  # where user addresses end on a 64-bit Linux
UNKNOWN = 1 << 40  # the capacity for which address space is reserved where none was given: 1 TiB


class Device:
    """Memory of ``capacity`` bytes (None: without end), of which ``context`` are this process's CUDA context and what
    else it holds outside of torch, and ``others`` are in use by other processes."""

    def __init__(self, capacity: int | None = None, context: int = 0, others: int = 0):
        for name, value in (("capacity", capacity), ("context", context), ("others", others)):
            if value is not None and value < 0:
                raise ValueError(f"{name} is {value}; it must be at least 0")
        self.capacity, self.context, self.others = capacity, context, others
        self.taken = 0
        self.lowest = TOP

    @property
    def free(self) -> int:
        """What ``cudaMemGetInfo`` would call free."""
        if self.capacity is None:
            return TOP
        return max(0, self.capacity - self.context - self.others - self.taken)

    def malloc(self, size: int) -> int | None:
        """The address of a new segment (``cudaMalloc``), or None where the device is full."""
        if size > self.free:
            return None
        self.taken += size
        return self._below(size)

    def release(self, address: int, size: int) -> None:
        """``cudaFree``."""
        self.taken -= size

    def reserve(self, page: int) -> tuple[int, int]:
        """Address and size of the room for an expandable segment, which costs no memory (``cuMemAddressReserve``).

        As torch does, 9/8 of the device, in whole pages.
        """
        capacity = UNKNOWN if self.capacity is None else self.capacity
        size = -(-(capacity + capacity // 8) // page) * page
        return self._below(size), size

    def map(self, address: int, size: int) -> bool:
        """Whether the device gives memory for these addresses (``cuMemCreate``, ``cuMemMap``)."""
        if size > self.free:
            return False
        self.taken += size
        return True

    def unmap(self, address: int, size: int) -> None:
        """Memory goes back, addresses stay (``cuMemUnmap``)."""
        self.taken -= size

    def _below(self, size: int) -> int:
        self.lowest = (self.lowest - size) // ROUND_LARGE * ROUND_LARGE
        return self.lowest
