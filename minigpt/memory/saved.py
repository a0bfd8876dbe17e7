"""saved_by_block(model, plan): what one block keeps for backward, tensor by tensor, and what saved each.

The list is read off the tape (``engine.tape``) on which ``predict`` runs the step, so its sum is what the block adds to
the predicted activations: a storage counts once, in the block that saves it first. A parameter that is saved counts
nothing, as it is there anyway; it is left out, and so is what is saved and gone before backward begins.

    bytes of a block = sum of nbytes over its storages that no earlier block has saved
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from minigpt.memory.engine.graph import BORN, DEAD, Record, Storage, Value
from minigpt.memory.engine.tape import WEIGHTS, Tape
from minigpt.memory.families import Architecture
from minigpt.memory.plan import TrainingPlan
from minigpt.memory.predicted.run import run


@dataclass(frozen=True)
class Saved:
    """One storage that a block has saved when forward ends.

    ``by``: the operations of this block that save it, in order; one that multiplies with a parameter has its name, as
    "linear q" or "multiply attn_norm". ``made_by``: (block, operation) that made it; the block is "" outside of blocks.
    ``elsewhere``: the blocks, or "outside", that have saved it before: it counts there, and not here. ``shape`` and
    ``dtype`` are those of the tensor that was made in it; ``nbytes`` is the storage's own.
    """

    by: tuple[str, ...]
    made_by: tuple[str, str]
    shape: tuple[int, ...] | None
    dtype: str
    nbytes: int
    elsewhere: tuple[str, ...] = ()

    @property
    def counted(self) -> int:
        """The bytes by which this block is larger for it."""
        return 0 if self.elsewhere else self.nbytes


def saved_by_block(model, plan: TrainingPlan, block: int = -1) -> tuple[Saved, ...]:
    """What ``block`` of the model (-1: the last) keeps for backward under ``plan``, in the order in which it is saved.

    Raises ValueError as ``predict`` does, and for a block that the model does not have.
    """
    last = Architecture.of(model).n_layer - 1
    wanted = last if block == -1 else block
    if not 0 <= wanted <= last:
        raise ValueError(f"block is {block}; allowed: -1 (the last), or 0 to {last}")
    return saved(model, plan).get(f"block {wanted}", ())  # of blocks in a row, the first keeps all


def saved(model, plan: TrainingPlan) -> dict[str, tuple[Saved, ...]]:
    """The same of every part: "block 0", "block 1" ...; what lies outside of blocks is the part "outside"."""
    return run(model, plan, lambda tape, _: tape.saved_when_forward_ends(), Noting)


class Noting(Tape):
    """A tape that also notes which operation saves which storage, in the first forward pass."""

    def __init__(self, *options, **more) -> None:
        super().__init__(*options, **more)
        self.operation = ""
        self.makers: dict[Record, str] = {}
        self.names: dict[Record, str] = {}  # of copies of parameters
        self.notes: dict[str, dict[Record, list[str]]] = {}

    def record(self, name: str, inputs: Sequence[Value], out: Any, saves: Sequence[Storage] = (),
               backward: Callable | None = None, saves_output: bool = False, outputs: int = 1) -> Value:  # fmt: skip
        records = [value.storage.record for value in inputs]
        weights = [self.names.get(r, r.born[2]) for r in records if r.bucket == WEIGHTS or r in self.names]
        self.operation = f"{name} {_plain(weights[0])}" if weights else name
        made = super().record(name, inputs, out, saves, backward, saves_output, outputs)
        record = made.storage.record
        if record not in records:  # no view
            self.makers.setdefault(record, self.operation)
            if name == "cast" and weights:  # autocast's copy of a parameter
                self.names[record] = weights[0]
        self.operation = ""
        return made

    def save(self, storage: Storage) -> None:
        if self.phase == "forward" and storage.record.bucket is None:
            by = self.notes.setdefault(self.part, {}).setdefault(storage.record, [])
            operation = self.operation or "checkpoint"  # which saves a block's inputs, and is no operation itself
            if operation not in by:
                by.append(operation)
        super().save(storage)

    @property
    def part(self) -> str:
        return self.block if self.block.startswith("block ") else "outside"

    def saved_when_forward_ends(self) -> dict[str, tuple[Saved, ...]]:
        alive = set()
        for phase, record, kind in self.events:
            if phase == "backward":
                break
            if kind == BORN:
                alive.add(record)
            elif kind == DEAD:
                alive.discard(record)
        before: dict[Record, list[str]] = {}
        found = {}
        for part, notes in self.notes.items():
            rows = []
            for record, by in notes.items():
                if record not in alive:
                    continue
                elsewhere = before.setdefault(record, [])
                made_by = record.born[1], self.makers.get(record, record.born[2])
                size = record.shape, record.dtype, record.nbytes
                rows.append(Saved(tuple(by), made_by, *size, tuple(elsewhere)))
                elsewhere.append(part)
            found[part] = tuple(rows)
        return found


def _plain(name: str) -> str:
    """A parameter's name inside its block: "q.A" for "blocks.3.q.A"."""
    parts = name.split(".")
    return ".".join(parts[2:] if parts[0] == "blocks" else parts)
