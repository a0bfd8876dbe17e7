"""What lies on the tape: storages that live and die, values that stand for tensors, and the graph that backward walks.

A storage dies when nothing refers to it, exactly as in PyTorch: Python's own reference counts do the work here too, so
a local variable of a forward function keeps its storage alive in both. What refers to a storage are values, the nodes
that saved it, and gradients; never an edge.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from minigpt.memory.buckets import BUCKETS
from minigpt.memory.engine import layout
from minigpt.memory.engine.layout import Shape, Strides

if TYPE_CHECKING:
    from minigpt.memory.engine.tape import Tape

WEIGHTS, GRADIENTS, OPTIMIZER, ACTIVATIONS, TEMPORARY = range(len(BUCKETS))
ITEMSIZE = {"float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "int8": 1, "uint8": 1, "bool": 1}
BORN, DEAD, SAVED, LET_GO = range(4)  # what can happen to a storage


class Record:
    """What is known of one storage, also after its death. ``bucket`` is None unless it has a standing one."""

    __slots__ = ("nbytes", "bucket", "place", "born", "shape", "dtype")

    def __init__(
        self, nbytes: int, bucket: int | None, born: tuple[str, str, str], shape: Shape | None, dtype: str
    ) -> None:
        self.nbytes, self.bucket, self.place = nbytes, bucket, TEMPORARY
        self.born, self.shape, self.dtype = born, shape, dtype  # born: phase, block, operation


class Storage:
    """Memory that is alive while anything refers to it."""

    __slots__ = ("tape", "record", "saved")

    def __init__(
        self, tape: Tape, nbytes: int, bucket: int | None = None, shape: Shape | None = None, dtype: str = ""
    ) -> None:
        self.tape, self.saved = tape, 0  # saved: how many nodes have saved it
        self.record = record = Record(nbytes, bucket, (tape.phase, tape.block, tape.doing), shape, dtype)
        tape.born(record)

    def was(self, nbytes: int, dtype: str) -> None:
        """What it turns out to have been from its birth on; for one that outlives the step."""
        change = nbytes - self.record.nbytes
        self.record.nbytes, self.record.dtype = nbytes, dtype
        self.tape.live += change
        self.tape.peak += change

    def __del__(self) -> None:
        tape, record = self.tape, self.record
        tape.events.append((tape.phase, record, DEAD))
        tape.live -= record.nbytes


class Leaf:
    """Where gradients end: a trained parameter, or another tensor. ``bucket``: what its ``.grad`` counts as."""

    __slots__ = ("gradient", "strides", "bucket", "order")

    def __init__(self, strides: Strides = None, bucket: int | None = GRADIENTS) -> None:
        self.gradient: Value | None = None
        self.strides, self.bucket = strides, bucket
        self.order = float("inf")  # torch runs these before any other node


class Edge:
    """Where the gradient of one input goes: a Node or Leaf (or None), which of its outputs, its shape and dtype."""

    __slots__ = ("target", "output", "shape", "dtype")

    def __init__(self, value: Value) -> None:  # the sizes alone: an edge must not keep the storage alive
        self.target, self.output, self.shape = value.source, value.output, value.shape
        self.dtype = value.gradient_dtype or value.dtype


class Node:
    """One operation to undo: ``backward(*gradients)`` returns a Value, or None, for each edge."""

    __slots__ = ("name", "block", "order", "edges", "saved", "backward", "outputs")

    def __init__(self, name, block, order, edges, saved, backward, outputs) -> None:
        self.name, self.block, self.order, self.edges = name, block, order, edges
        self.saved, self.backward, self.outputs = saved, backward, outputs


class Value:
    """A tensor without numbers. ``source`` is the Node or Leaf that its gradient goes to, or None.

    ``base`` is the value that this one is a view of; ``gradient_dtype`` that of ``.grad``, if it is another.
    """

    __slots__ = ("storage", "shape", "strides", "dtype", "source", "output", "base", "gradient_dtype")

    def __init__(
        self, storage: Storage, shape: Shape, dtype: str, strides: Strides = None, source=None, base=None
    ) -> None:
        self.storage, self.shape, self.dtype, self.strides = storage, shape, dtype, strides
        self.source, self.output, self.base = source, 0, base
        self.gradient_dtype: str | None = None

    @property
    def numel(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of its elements; a view's storage may have more."""
        return prod(self.shape) * ITEMSIZE[self.dtype]

    @property
    def layout(self) -> layout.Layout:
        return self.shape, self.strides
