"""Messages over a pair of file descriptors, with a time limit.

Each is a letter, a number, seconds, a length, and so many bytes. A reply has its request's number, so that one that
somebody has typed in before is told from the one that was asked for.
"""

from __future__ import annotations

import os
import select
import struct
import time

HEAD = struct.Struct(">cQdQ")
CHUNK = 2**16


class Ended(Exception):
    """The other side is gone, or has not answered in time (``late``), or sends more than is allowed."""

    def __init__(self, why: str, late: bool = False) -> None:
        super().__init__(why)
        self.late = late


class Pipe:
    """Reads from one descriptor and writes to the other, which may be the same; ``alive()`` is asked while it waits."""

    def __init__(self, reads: int, writes: int, limit: int, alive=lambda: True) -> None:
        self.reads, self.writes, self.limit, self.alive = reads, writes, limit, alive
        os.set_blocking(writes, False)

    def send(self, kind: bytes, number: int, data: bytes = b"", seconds: float = 0.0, within: float = 60.0) -> None:
        """Raises Ended where the other side has not taken it ``within`` so many seconds."""
        end, left = time.monotonic() + within, memoryview(HEAD.pack(kind, number, seconds, len(data)) + data)
        while left:
            try:
                left = left[os.write(self.writes, left[:CHUNK]) :]
            except BlockingIOError:
                self._wait(end, [], [self.writes])
            except OSError as error:
                raise Ended(str(error)) from None

    def receive(self, within: float | None = None) -> tuple[bytes, int, float, bytes]:
        """(kind, number, seconds, data); without a limit it waits for ever."""
        end = None if within is None else time.monotonic() + within
        kind, number, seconds, length = HEAD.unpack(self._read(HEAD.size, end))
        if length > self.limit:
            raise Ended("a reply that is too large")
        return kind, number, seconds, self._read(length, end)

    def _read(self, length: int, end: float | None) -> bytes:
        data = bytearray()
        while len(data) < length:
            self._wait(end, [self.reads], [])
            try:
                part = os.read(self.reads, min(CHUNK, length - len(data)))
            except BlockingIOError:
                continue
            except OSError as error:
                raise Ended(str(error)) from None
            if not part:
                raise Ended("it has closed its end")
            data += part
        return bytes(data)

    def _wait(self, end: float | None, reads: list[int], writes: list[int]) -> None:
        while True:
            left = 0.2 if end is None else end - time.monotonic()
            if left <= 0:
                raise Ended("no answer in time", late=True)
            alive = self.alive()  # asked first: what a process wrote before it died can still be read
            if any(select.select(reads, writes, [], min(left, 0.2) if alive else 0)):
                return
            if not alive:
                raise Ended("it has ended")
