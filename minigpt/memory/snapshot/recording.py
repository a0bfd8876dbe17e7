"""Recording: the events of a snapshot that torch wrote, and what was held before and after each.

    torch.cuda.memory._record_memory_history()
    ...                                                  # the steps to record
    torch.cuda.memory._dump_snapshot("step.pickle")

A snapshot has the *last* events, and the state after them. The state before them is found by undoing them, last one
first. Bytes as torch counts them: a request is held from ``alloc`` to ``free_requested``, and takes a multiple of 512;
reserved is what was taken from the device, ``segment_alloc`` or ``segment_map``, and not given back.

A block may take up to 1 MiB more than was asked for; ``blocks`` finds how much. Left out: users' annotations; memory
pools apart from the others.
Source: torch/cuda/memory.py, ``_snapshot``; c10/cuda/CUDACachingAllocator.cpp, ``TraceEntry`` (torch 2.13).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from minigpt.memory.snapshot.plain import load

ROUNDED = 512  # bytes: every block is a multiple
SMALL = 2 << 20  # bytes: every segment of the small pool, and none of the other
TAKEN = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
ACTIONS = ("alloc", "free_requested", "free_completed", "oom", "snapshot", "user_defined", *TAKEN)
HELD = ("active_allocated",)  # the state of a block that torch counts as allocated


class Frame(NamedTuple):
    """One call of the recorded stack."""

    file: str
    line: int
    name: str


class Request(NamedTuple):
    """Bytes that were asked for, at an address, by a stack of frames, the innermost first."""

    address: int
    nbytes: int
    frames: tuple[Frame, ...] = ()
    block: int = 0

    @property
    def takes(self) -> int:
        """The bytes of its block; where that is not known, the least: ``nbytes``, rounded up to a multiple of 512."""
        return self.block or max(ROUNDED, -(-self.nbytes // ROUNDED) * ROUNDED)


class Segment(NamedTuple):
    """``size`` bytes that were taken from the device at once, for the small or the large pool."""

    address: int
    size: int
    stream: int
    small: bool


class Event(NamedTuple):
    """What the allocator did: ``action`` is one of ``ACTIONS``; of an ``oom``, ``free`` is what the device had left."""

    action: str
    request: Request
    stream: int = 0
    free: int = 0


@dataclass(frozen=True)
class Recording:
    """A device's events in order, with the requests that were held and the segments before the first of them.

    ``unexplained`` counts events that the final state contradicts; 0 in a whole recording. ``pages``: segments grow by
    pages (expandable), and ``segments`` holds those. ``open``: how many bytes more the blocks may take than ``sizes``
    has; None: not known.
    """

    events: tuple[Event, ...]
    held: tuple[Request, ...]
    segments: tuple[Segment, ...]
    device: int = 0
    unexplained: int = 0
    pages: bool = False
    open: int | None = None

    def sizes(self) -> Iterator[tuple[int, int]]:
        """(allocated, reserved) bytes before the first event, and after each."""
        live = {request.address: request.takes for request in self.held}
        allocated, reserved = sum(live.values()), sum(segment.size for segment in self.segments)
        yield allocated, reserved
        for event in self.events:
            if event.action == "alloc":
                live[event.request.address] = event.request.takes
                allocated += event.request.takes
            elif event.action == "free_requested":
                allocated -= live.pop(event.request.address, 0)
            else:
                reserved += TAKEN.get(event.action, 0) * event.request.nbytes
            yield allocated, reserved

    def peak(self, which: int = 0) -> int:
        """How many events had happened when allocated (``which`` 0) or reserved (1) bytes were first at their most."""
        sizes = [size[which] for size in self.sizes()]
        return sizes.index(max(sizes))

    def held_after(self, count: int) -> list[Request]:
        """What is held after the first ``count`` events, in the order of asking."""
        live = {request.address: request for request in self.held}
        for event in self.events[:count]:
            if event.action == "alloc":
                live[event.request.address] = event.request
            elif event.action == "free_requested":
                live.pop(event.request.address, None)
        return list(live.values())


def read(path: str | Path, device: int | None = None) -> Recording:
    """The recording in a snapshot's file, of ``device``, or of the one with the most events.

    Raises ValueError for a file that holds no snapshot, code, a device that it does not have, or no history.
    """
    snapshot, nbytes = load(path)
    reader = _Reader(path, nbytes)
    traces = reader.field(snapshot, "device_traces", list, "the snapshot")
    devices = [place for place, trace in enumerate(traces) if trace]
    if not devices:
        raise ValueError(
            f"{path} holds no history: torch.cuda.memory._record_memory_history() was not called before it"
        )
    if device is None:
        device = max(devices, key=lambda place: len(reader.a(list, traces[place], "a trace")))
    if device not in devices:
        raise ValueError(f"device is {device!r}; {path} has a history of {', '.join(map(str, devices))}")
    events = [reader.event(entry) for entry in traces[device]]
    mine = [entry for entry in reader.field(snapshot, "segments", list, "the snapshot") if reader.on(entry, device)]
    segments = [reader.segment(entry) for entry in mine]
    pages = any("map" in event.action for event in events) or any(entry.get("is_expandable") for entry in mine)
    return _undone(
        events, [block for _, blocks in segments for block in blocks], [s for s, _ in segments], device, pages
    )


def _undone(
    events: Sequence[Event], held: Sequence[Request], segments: Sequence[Segment], device: int, pages: bool
) -> Recording:
    """The recording whose final state is ``held`` in ``segments``."""
    live, unexplained = {request.address: request for request in held}, 0
    there = {segment.address: segment for segment in segments}
    for place in range(len(events) - 1, -1, -1):
        action, request, stream, _ = events[place]
        if action == "alloc":
            unexplained += live.pop(request.address, None) is None
        elif action == "free_requested":
            unexplained += request.address in live
            live[request.address] = request._replace(frames=())  # those are the frames of who freed it
        elif action == "segment_alloc":
            unexplained += there.pop(request.address, None) is None
        elif action == "segment_free":
            there[request.address] = Segment(request.address, request.nbytes, stream, request.nbytes == SMALL)
        elif action in TAKEN:  # pages, which a segment grows and shrinks by
            there[-1] = there.get(-1, Segment(-1, 0, 0, False))
            there[-1] = there[-1]._replace(size=there[-1].size - TAKEN[action] * request.nbytes)
    unexplained += sum(segment.size for segment in there.values()) < 0
    return Recording(tuple(events), tuple(live.values()), tuple(there.values()), device, unexplained, pages)


class _Reader:
    """Fields of the right kind, or a ValueError that names the file; and no more entries than bytes were read."""

    def __init__(self, path: str | Path, nbytes: int) -> None:
        self.path, self.left = path, nbytes
        self.stacks: dict[int, tuple[Frame, ...]] = {}  # equal stacks are one list in the file

    def a(self, kind: type, value: Any, what: str) -> Any:
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise ValueError(f"{self.path} is no snapshot: {what} is {type(value).__name__}, not {kind.__name__}")
        return value

    def field(self, entry: Any, name: str, kind: type, what: str, default: Any = None) -> Any:
        value = self.a(dict, entry, what).get(name, default)
        if value is None:
            raise ValueError(f"{self.path} is no snapshot: {what} has no {name!r}")
        value = self.a(kind, value, f"{name} of {what}")
        if kind is int and value < 0:
            raise ValueError(f"{self.path} is no snapshot: {name} of {what} is {value}")
        return value

    def event(self, entry: Any) -> Event:
        self._count()
        action = self.field(entry, "action", str, "an event")
        if action not in ACTIONS:
            raise ValueError(f"{self.path} has an event {action!r}; known: {', '.join(ACTIONS)}")
        nowhere = 0 if action in ("oom", "snapshot", "user_defined") else None
        request = Request(
            self.field(entry, "addr", int, f"an event {action}", nowhere),
            self.field(entry, "size", int, f"an event {action}", nowhere),
            self._frames(entry),
        )
        stream = self.field(entry, "stream", int, f"an event {action}", 0)
        return Event(action, request, stream, self.field(entry, "device_free", int, f"an event {action}", 0))

    def on(self, entry: Any, device: int) -> bool:
        """Whether a segment is on ``device``."""
        self._count()
        return self.field(entry, "device", int, "a segment") == device

    def segment(self, entry: Any) -> tuple[Segment, list[Request]]:
        """A segment, and what is held in it."""
        total, stream = (self.field(entry, name, int, "a segment", 0) for name in ("total_size", "stream"))
        address, held = self.field(entry, "address", int, "a segment"), list[Request]()
        found = Segment(address, total, stream, self.field(entry, "segment_type", str, "a segment") == "small")
        for block in self.field(entry, "blocks", list, "a segment"):
            self._count()
            size = self.field(block, "size", int, "a block")
            if self.field(block, "state", str, "a block") in HELD:
                place = self.field(block, "address", int, "a block", address)  # torch before 2.1 gave none
                asked = self.field(block, "requested_size", int, "a block", size)
                held.append(Request(place, asked, self._frames(block), size))
            address += size
        return found, held

    def _frames(self, entry: dict) -> tuple[Frame, ...]:
        frames = entry.get("frames")
        if not frames:
            return ()
        known = self.stacks.get(id(frames))
        if known is None:
            known = tuple(self._frame(frame) for frame in self.a(list, frames, "frames"))
            self.stacks[id(frames)] = known
        return known

    def _frame(self, frame: Any) -> Frame:
        self._count()
        what = "a frame"
        return Frame(self.field(frame, "filename", str, what), self.field(frame, "line", int, what),
                     self.field(frame, "name", str, what))  # fmt: skip

    def _count(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise ValueError(f"{self.path} is no snapshot: it has more entries than bytes")
