"""A device whose answers were recorded: it gives the addresses that it gave, and tells when something else is asked."""

from __future__ import annotations

from collections import deque

from minigpt.memory.predicted.allocator.device import Device


class DifferenceError(Exception):
    """The allocator decided otherwise than the recording."""


class RecordedDevice(Device):
    """A device that gives what was recorded, and raises DifferenceError where something else is asked of it.

    ``coming``: (address, size) of the segments or pages that were taken just before the request that is being replayed;
    ``leaving``: of those that go back.
    """

    def __init__(self):
        super().__init__()
        self.coming: deque[tuple[int, int]] = deque()
        self.leaving: set[tuple[int, int]] = set()

    def malloc(self, size: int) -> int:
        if not self.coming:
            raise DifferenceError(f"takes a segment of {size:,} bytes, which the recording does not")
        address, recorded = self.coming.popleft()
        if recorded != size:
            raise DifferenceError(f"takes a segment of {size:,} bytes, the recording one of {recorded:,}")
        return address

    def release(self, address: int, size: int) -> None:
        if (address, size) not in self.leaving:
            raise DifferenceError(f"gives {size:,} bytes at {address} back, which the recording does not")
        self.leaving.remove((address, size))

    def reserve(self, page: int) -> tuple[int, int]:
        if not self.coming:
            raise DifferenceError("begins an expandable segment, which the recording does not")
        return self.coming[0][0], super().reserve(page)[1]

    def map(self, address: int, size: int) -> bool:
        recorded = self.malloc(size)
        if recorded != address:
            raise DifferenceError(f"maps {size:,} bytes at {address}, the recording at {recorded}")
        return True

    unmap = release
