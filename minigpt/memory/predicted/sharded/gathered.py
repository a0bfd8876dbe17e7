"""Memory that comes and goes under one tensor: a gathered weight's.

FSDP and ZeRO-3 give a storage its bytes before a block runs and take them away after it; the tensor stays, and what
autograd has saved of it finds its numbers there again.
"""

from __future__ import annotations

from minigpt.memory.engine.graph import DEAD, TEMPORARY, Record, Storage
from minigpt.memory.engine.layout import Shape
from minigpt.memory.engine.tape import Tape


class Gathered(Storage):
    """A storage without bytes until ``fill``; ``empty`` takes them away again."""

    __slots__ = ("filled", "nbytes", "name")

    def __init__(self, tape: Tape, nbytes: int, name: str, shape: Shape, dtype: str) -> None:
        self.tape, self.saved, self.filled = tape, 0, False
        self.nbytes, self.name = nbytes, name
        self.record = Record(nbytes, TEMPORARY, (tape.phase, tape.block, name), shape, dtype)

    def fill(self) -> None:
        """Its bytes are there, all of a name of their own."""
        tape, old = self.tape, self.record
        assert not self.filled, "it is filled once"
        born = (tape.phase, tape.block, self.name)
        self.filled, self.record = True, Record(self.nbytes, TEMPORARY, born, old.shape, old.dtype)
        tape.born(self.record)

    def empty(self) -> None:
        if self.filled:
            self.filled = False
            self.tape.events.append((self.tape.phase, self.record, DEAD))
            self.tape.live -= self.nbytes

    def __del__(self) -> None:
        self.empty()
