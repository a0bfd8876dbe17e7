"""A run on a simulated card: the requests of its steps go through the allocator, and where each lay is noted.

    run = Replay("smollm2-135m", TrainingPlan(batch=8, card="T4"), capacity=15 * 2**30)
    run.step(512)                                   # the model is loaded, then the first step, which makes the state
    run.step(640)                                   # a steady step, of another length
    run.evaluate(Evaluation(samples=100))           # Trainer's, between two steps
    run.allocator.statistics.reserved.peak

The requests are ``predicted.training``'s: a storage is asked for where it is born, and freed where it dies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from minigpt.memory.buckets import BUCKETS
from minigpt.memory.engine.graph import ACTIVATIONS, BORN, DEAD, OPTIMIZER, SAVED, TEMPORARY, WEIGHTS, Record
from minigpt.memory.evaluation import Evaluation
from minigpt.memory.plan import TrainingPlan
from minigpt.memory.predicted.allocator import Allocator, Block, Device, Options
from minigpt.memory.predicted.allocator.options import SMALL_SEGMENT
from minigpt.memory.predicted.training import Training


@dataclass
class Held:
    """A block in use: its place in bytes, its bucket, and between which of the allocator's events (None: still)."""

    address: int
    size: int
    bucket: str
    born: int
    died: int | None = None


@dataclass
class Taken:
    """Memory taken from the device. ``room``: the segment's first address; all pages of an expandable one have one."""

    room: int
    address: int
    size: int
    small: bool
    born: int
    died: int | None = None


class NotingDevice(Device):
    """A device that notes in ``taken_at`` what was taken of it, and when, by the clock of its ``allocator``."""

    allocator: Allocator

    def __init__(self, capacity: int | None, context: int):
        super().__init__(capacity, context)
        self.segments: list[Taken] = []
        self._open: dict[int, Taken] = {}
        self._rooms: dict[int, tuple[int, int]] = {}  # address of an expandable segment: its end, its page

    def malloc(self, size: int) -> int | None:
        address = super().malloc(size)
        if address is not None:
            self._note(address, address, size, size == SMALL_SEGMENT)
        return address

    def release(self, address: int, size: int) -> None:
        super().release(address, size)
        self._open.pop(address).died = self.allocator.event

    def reserve(self, page: int) -> tuple[int, int]:
        address, size = super().reserve(page)
        self._rooms[address] = address + size, page
        return address, size

    def map(self, address: int, size: int) -> bool:
        if not super().map(address, size):
            return False
        room, page = self._room(address)
        for at in range(address, address + size, page):
            self._note(room, at, page, page == SMALL_SEGMENT)
        return True

    def unmap(self, address: int, size: int) -> None:
        super().unmap(address, size)
        for at in range(address, address + size, self._room(address)[1]):
            self._open.pop(at).died = self.allocator.event

    def _room(self, address: int) -> tuple[int, int]:
        return next((room, page) for room, (end, page) in self._rooms.items() if room <= address < end)

    def _note(self, room: int, address: int, size: int, small: bool) -> None:
        self._open[address] = segment = Taken(room, address, size, small, self.allocator.event)
        self.segments.append(segment)


class Replay:
    """A training run of ``model`` under ``plan`` on a card of ``capacity`` bytes (None: without end).

    ``context``: what CUDA holds of them. ``held`` and ``segments`` are what was where, and when; ``marks`` are (name,
    event): what began when. Raises ``OutOfMemoryError`` from ``step``, and ValueError for what ``predict`` refuses.
    """

    def __init__(self, model, plan: TrainingPlan, options: Options | None = None, capacity: int | None = None,
                 context: int = 0):  # fmt: skip
        device = NotingDevice(capacity, context)
        self.allocator = device.allocator = Allocator(options, device)
        self.training, self.segments = Training(model, plan), device.segments
        self.held: list[Held] = []
        self.marks: list[tuple[str, int]] = []
        self._notes: dict[int, Held] = {}  # by address
        self._live: dict[Record, Block] = {}
        self._done = 0  # of the tape's events

    def step(self, seq_len: int | None = None) -> Replay:
        """One step of ``seq_len`` tokens per sequence (None: the plan's). The first one loads the model before it."""
        self.training.step(seq_len)
        return self._go_on()

    def evaluate(self, evaluation: Evaluation) -> Replay:
        """Trainer's evaluation, after a step. Raises ValueError where ``predict_evaluation`` does."""
        self.training.evaluate(evaluation)
        return self._go_on()

    def _go_on(self) -> Replay:
        """What is new on the tape goes through the allocator."""
        tape, began, before = self.training.tape, self._done, ""
        events, self._done = tape.events[began:], len(tape.events)
        saved = {record for _, record, what in events if what == SAVED}
        for count, (phase, record, what) in enumerate(events, start=began):
            if count in tape.emptied:
                self.empty_cache()
            if not record.nbytes or what not in (BORN, DEAD):
                continue
            name = "load" if phase == "before" else phase
            if name != before:
                self.marks.append((name, self.allocator.event))
                before = name
            if what == BORN:
                place = ACTIVATIONS if record in saved else TEMPORARY
                self._allocate(record, BUCKETS[place if record.bucket is None else record.bucket])
            elif record in self._live:  # else it died with a failed step
                self._free(record)
        return self

    def empty_cache(self) -> None:
        """As ``torch.cuda.empty_cache()`` between two steps."""
        self.allocator.empty_cache()

    def forget(self) -> None:
        """What no later step finds dies, when the error of one that failed has been handled."""
        for record in list(self._live):
            if record.bucket not in (WEIGHTS, OPTIMIZER) and not record.born[2].endswith("workspace"):
                self._free(record)

    def peaks(self) -> list[tuple[int, int]]:
        """What was (allocated, reserved) at most within each step and each evaluation, in bytes."""
        edges = [at for name, at in self.marks if name in ("forward", "evaluation")] + [self.allocator.event]
        columns = [_highest(noted, edges) for noted in (self.held, self.segments)]
        return list(zip(*columns, strict=True))

    def _allocate(self, record: Record, bucket: str) -> None:
        self._live[record] = block = self.allocator.allocate(record.nbytes)
        self._notes[block.address] = note = Held(block.address, block.size, bucket, self.allocator.event)
        self.held.append(note)

    def _free(self, record: Record) -> None:
        block = self._live.pop(record)
        self._notes.pop(block.address).died = self.allocator.event + 1
        self.allocator.free(block)


def _highest(noted: Sequence[Held] | Sequence[Taken], edges: list[int]) -> list[int]:
    """The largest sum of sizes between each edge and the next; what dies at an event goes before what is born at it."""
    changes = [(it.born, it.size) for it in noted] + [(it.died, -it.size) for it in noted if it.died is not None]
    level, at, found = 0, 0, []
    changes.sort()
    for start, end in zip(edges, edges[1:]):
        while at < len(changes) and changes[at][0] <= start:
            level, at = level + changes[at][1], at + 1
        highest = level
        while at < len(changes) and changes[at][0] <= end:
            level, at = level + changes[at][1], at + 1
            highest = max(highest, level)
        found.append(highest)
    return found
