"""The account of a step on sizes: each storage's birth, saving and death, in turn, and the buckets that they make.

A storage that no bucket has from the start (weights, gradients, optimizer) is an activation while a node has it
saved, and temporary otherwise. All sizes are bytes.
"""

from __future__ import annotations

from minigpt.memory.buckets import BUCKETS, Ledger, StepMemory
from minigpt.memory.engine.graph import ACTIVATIONS, BORN, DEAD, LET_GO, SAVED, TEMPORARY, Record, Storage


class Account:
    """What happened to storages so far. They write their own births and deaths into it (``graph.Storage``)."""

    def __init__(self) -> None:
        self.phase, self.block, self.doing = "before", "", ""  # where in the step, in the model, and what
        self.live = self.peak = self.peak_event = 0
        self.peak_at = ("", "", "")
        self.events: list[tuple[str, Record, int]] = []
        self.emptied: list[int] = []  # after how many events a card's cache was emptied

    def born(self, record: Record) -> None:
        self.events.append((self.phase, record, BORN))
        self.live = live = self.live + record.nbytes
        if live > self.peak:
            self.peak, self.peak_event, self.peak_at = live, len(self.events), record.born

    def save(self, storage: Storage) -> None:
        storage.saved += 1
        if storage.saved == 1:
            self.events.append((self.phase, storage.record, SAVED))

    def let_go(self, storage: Storage) -> None:
        storage.saved -= 1
        if storage.saved == 0:
            self.events.append((self.phase, storage.record, LET_GO))

    def alive_at_peak(self) -> list[tuple[int, Record]]:
        """(bucket, record) of every storage that is alive at the largest instant, in the order of birth."""
        alive: dict[Record, int] = {}
        for _, record, kind in self.events[: self.peak_event]:
            if kind == BORN:
                alive[record] = TEMPORARY
            elif kind == DEAD:
                del alive[record]
            elif record.bucket is None:
                alive[record] = ACTIVATIONS if kind == SAVED else TEMPORARY
        return [(place if record.bucket is None else record.bucket, record) for record, place in alive.items()]

    def result(self, frozen: int = 0) -> StepMemory:
        """The buckets over the step, from its events; what a storage became is known only now."""
        totals, largest = [0] * len(BUCKETS), [0] * len(BUCKETS)
        events, peak = [], Ledger()
        for count, (phase, record, kind) in enumerate(self.events, start=1):
            bucket, nbytes = record.bucket, record.nbytes
            if kind == BORN or kind == DEAD:
                bucket = record.place if bucket is None else bucket
                nbytes = nbytes if kind == BORN else -nbytes
                totals[bucket] += nbytes
                events.append((phase, bucket, nbytes))
            elif bucket is None:
                before, record.place = record.place, ACTIVATIONS if kind == SAVED else TEMPORARY
                bucket = record.place
                totals[before] -= nbytes
                totals[bucket] += nbytes
                events += [(phase, before, -nbytes), (phase, bucket, nbytes)]
            if totals[bucket] > largest[bucket]:
                largest[bucket] = totals[bucket]
            if count == self.peak_event:
                peak = Ledger(*totals)
        largest[TEMPORARY] = peak.temporary
        phase, block, doing = self.peak_at
        at = f"{phase}, {': '.join(filter(None, (block, doing)))}"
        return StepMemory(Ledger(*largest), peak, at, tuple(events), frozen)
