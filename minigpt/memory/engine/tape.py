"""Autograd on byte counts: a tape that runs a training step without numbers, only sizes.

A ``Value`` stands for a tensor: how many elements, how many bytes each, and which ``Storage`` holds them.
Operations (``minigpt.memory.engine.ops``) make new values and leave a ``Node`` with what backward will need.
``backward`` then walks the nodes as torch's engine does: latest first, gradients summed where paths meet,
saved tensors let go once their node has run.

A storage dies when nothing refers to it, exactly as in PyTorch: Python's own reference counts do the work
here too, so a local variable of a forward function keeps its storage alive in both.

Three rules of torch's engine matter to the peak, each visible in the profiler's events:

    a node's new gradients exist together with its incoming gradient and everything it saved
    two gradients of one value are summed in place when nobody else holds the first one ...
    ... except where the first is a view, as a linear layer's gradients are: that makes a third tensor
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from sys import getrefcount

from minigpt.memory.buckets import BUCKETS, Ledger, StepMemory

WEIGHTS, GRADIENTS, OPTIMIZER, ACTIVATIONS, TEMPORARY = range(len(BUCKETS))


class Storage:
    """``nbytes`` of memory, alive while anything refers to it."""

    __slots__ = ("tape", "nbytes", "bucket", "saved", "viewed")

    def __init__(self, tape: Tape, nbytes: int, bucket: int = TEMPORARY) -> None:
        self.tape, self.nbytes, self.bucket = tape, nbytes, bucket
        self.saved = 0  # how many nodes have saved it
        self.viewed = False  # a gradient that torch returns as a view
        tape.change(bucket, nbytes)

    def __del__(self) -> None:
        self.tape.change(self.bucket, -self.nbytes)

    def move(self, bucket: int) -> None:
        self.tape.change(self.bucket, -self.nbytes)
        self.bucket = bucket
        self.tape.change(bucket, self.nbytes)


class Leaf:
    """A trainable parameter, or another tensor where gradients end. ``nbytes``: what its ``.grad`` takes."""

    __slots__ = ("gradient", "nbytes", "bucket")

    def __init__(self, nbytes: int, bucket: int = GRADIENTS) -> None:
        self.gradient: Storage | None = None
        self.nbytes, self.bucket = nbytes, bucket


class Edge:
    """Where the gradient of one input goes: a Node or Leaf (or None), which of its outputs, how large."""

    __slots__ = ("target", "output", "numel", "itemsize")

    def __init__(self, value: Value) -> None:  # the sizes alone: an edge must not keep the storage alive
        self.target, self.output = value.source, value.output
        self.numel, self.itemsize = value.numel, value.itemsize

    @property
    def nbytes(self) -> int:
        return self.numel * self.itemsize


class Node:
    """One operation to undo: ``backward(edges, *gradients)`` returns a storage, or None, for each edge."""

    __slots__ = ("name", "order", "edges", "saved", "backward", "outputs")

    def __init__(self, name, order, edges, saved, backward, outputs) -> None:
        self.name, self.order, self.edges = name, order, edges
        self.saved, self.backward, self.outputs = saved, backward, outputs


class Value:
    """A tensor's size. ``source`` is the Node or Leaf that its gradient goes to, or None."""

    __slots__ = ("storage", "numel", "itemsize", "source", "output")

    def __init__(self, storage: Storage, numel: int, itemsize: int, source=None, output: int = 0) -> None:
        self.storage, self.numel, self.itemsize = storage, numel, itemsize
        self.source, self.output = source, output

    @property
    def nbytes(self) -> int:
        return self.numel * self.itemsize


class Tape:
    """The running account of one step. All sizes are bytes."""

    def __init__(self, cuda: bool = False) -> None:
        self.cuda = cuda  # whether CUDA's kernels run, where they differ from a CPU's
        self.phase = "before"
        self.block = self.doing = ""  # where in the model, and which operation
        self.totals = [0] * len(BUCKETS)
        self.largest = [0] * len(BUCKETS)
        self.live = self.peak = 0
        self.peak_totals, self.peak_at = tuple(self.totals), ""
        self.events: list[tuple[str, int, int]] = []
        self._nodes = 0
        self.recomputed: list[Storage] = []  # what the running node asked a checkpointed block for
        self.keep = self.keep_saved  # what a node does with what it saves; a checkpointed block has its own ways

    def change(self, bucket: int, nbytes: int) -> None:
        """Add ``nbytes`` (or take them away) and remember the largest instant."""
        totals = self.totals
        totals[bucket] += nbytes
        self.live += nbytes
        if totals[bucket] > self.largest[bucket]:
            self.largest[bucket] = totals[bucket]
        if self.live > self.peak:
            self.peak, self.peak_totals = self.live, tuple(totals)
            self.peak_at = f"{self.phase}, {self.doing or self.block}"
        self.events.append((self.phase, bucket, nbytes))

    # ------------------------------------------------------------ forward

    def new(self, nbytes: int) -> Storage:
        """A temporary storage."""
        return Storage(self, nbytes)

    def constant(self, numel: int, itemsize: int) -> Value:
        """A tensor without a gradient: tokens, positions, a mask."""
        return Value(Storage(self, numel * itemsize), numel, itemsize)

    def record(
        self,
        name: str,
        inputs: Sequence[Value],
        out: Value | tuple[int, int],
        saves: Sequence[Storage] = (),
        backward: Callable | None = None,
        outputs: int = 1,
    ) -> Value:
        """Make ``out`` the result of an operation on ``inputs`` that saves ``saves`` for backward.

        ``out`` is a Value, or the (numel, itemsize) of one to make after the saving, as torch does where it saves
        inputs alone. ``backward`` makes one new gradient for each input unless it is given. Without an input that
        takes a gradient nothing is recorded or saved.
        """
        recorded = any(value.source is not None for value in inputs)
        saved = self.keep(saves) if recorded else ()
        if type(out) is tuple:
            numel, itemsize = out
            out = Value(self.new(numel * itemsize), numel, itemsize)
        if not recorded:
            return out
        self._nodes += 1
        edges = [Edge(value) for value in inputs]
        name = f"{self.block}: {name}" if self.block else name
        out.source = Node(name, self._nodes, edges, saved, backward or self.fresh, outputs)
        return out

    def keep_saved(self, storages: Sequence[Storage]) -> Sequence[Storage]:
        """What a node saves becomes an activation, if it is nothing else."""
        for storage in storages:
            self.save(storage)
        return storages

    def save(self, storage: Storage) -> None:
        storage.saved += 1
        if storage.saved == 1 and storage.bucket == TEMPORARY:
            storage.move(ACTIVATIONS)

    def let_go(self, storage: Storage) -> None:
        storage.saved -= 1
        if storage.saved == 0 and storage.bucket == ACTIVATIONS:
            storage.move(TEMPORARY)

    # ------------------------------------------------------------ backward

    def gradient(self, edge: Edge) -> Storage | None:
        """A new gradient along ``edge``, in its input's precision; None if that input takes none."""
        if edge.target is None:
            return None
        return self._part(edge.target, edge.nbytes)

    def _part(self, target: Node | Leaf, nbytes: int) -> Storage:
        """A gradient, or one of those that a gradient is the sum of."""
        whole = self._parts[target] == 1
        return Storage(self, nbytes, self._bucket(target, nbytes) if whole else TEMPORARY)

    def fresh(self, edges: Sequence[Edge], *gradients: Storage) -> list:
        """The usual backward: a new gradient for each input."""
        return [self.gradient(edge) for edge in edges]

    def _bucket(self, target: Node | Leaf, nbytes: int) -> int:
        """Gradients for what will become a leaf's ``.grad`` as it is; temporary for everything else."""
        final = (
            type(target) is Leaf and target.gradient is None and target.nbytes == nbytes and self._waits[target] == 1
        )
        return target.bucket if final else TEMPORARY

    def backward(self, loss: Value) -> None:
        """Give every leaf its gradient, freeing the graph on the way."""
        self._waits = waits = _dependents(loss.source)
        self._parts = dict(waits)  # how many gradients each leaf's is the sum of
        root = self.new(loss.nbytes)  # the 1 that backward starts from; torch keeps it to the end
        pending: dict[Node | Leaf, list] = {loss.source: [root]}
        ready = [(-loss.source.order, loss.source)]
        loss.source = None
        while ready:
            node = heapq.heappop(ready)[1]
            self.doing = node.name
            incoming = pending.pop(node)
            handles = [item for item in node.saved if type(item) is not Storage]
            self.recomputed = [handle.unpack() for handle in handles]
            gradients = node.backward(node.edges, *incoming)
            del incoming
            self.recomputed.clear()
            edges = node.edges
            self._cast_for_leaves(edges, gradients, viewed=False)
            for item in node.saved if not handles else ():
                self.let_go(item)
            node.edges, node.saved, node.backward = (), (), None
            item = handles = None
            self._cast_for_leaves(edges, gradients, viewed=True)
            gradients.reverse()
            for edge in edges:
                gradient, target = gradients.pop(), edge.target
                if target is None:
                    continue
                slots = pending.setdefault(target, [None] * getattr(target, "outputs", 1))
                slots[edge.output] = self._sum(slots[edge.output], gradient, target)
                gradient = None
                waits[target] -= 1
                if not waits[target]:
                    if type(target) is Node:
                        heapq.heappush(ready, (-target.order, target))
                    else:
                        gradient = pending.pop(target)[0]
                        target.gradient = target.gradient or gradient  # taken over as .grad, or added to it
                        gradient = None
            node = edge = edges = target = slots = None

    def _sum(self, old: Storage | None, new: Storage, target: Node | Leaf) -> Storage:
        if old is None:
            return new
        if getrefcount(old) <= HELD_BY_ENGINE and not old.viewed:
            old.move(self._bucket(target, old.nbytes))
            return old  # in place
        return Storage(self, old.nbytes, self._bucket(target, old.nbytes))

    def _cast_for_leaves(self, edges: Sequence[Edge], gradients: list, viewed: bool) -> None:
        """The engine casts what a leaf is sent to the precision of its ``.grad``: a view after a node of its own."""
        for i, edge in enumerate(edges):
            gradient, target = gradients[i], edge.target
            if gradient is None or type(target) is not Leaf or gradient.nbytes == target.nbytes:
                continue
            if gradient.viewed == viewed:
                gradients[i] = self._part(target, target.nbytes)

    def result(self, frozen: int = 0) -> StepMemory:
        peak = Ledger(*self.peak_totals)
        largest = [*self.largest[:TEMPORARY], peak.temporary]
        return StepMemory(Ledger(*largest), peak, self.peak_at, tuple(self.events), frozen)


HELD_BY_ENGINE = 3  # the pending list, _sum's argument and getrefcount's own


def _dependents(root: Node) -> dict[Node | Leaf, int]:
    """How many gradients each node and leaf will be sent."""
    waits: dict[Node | Leaf, int] = {}
    stack, seen = [root], {root}
    while stack:
        for edge in stack.pop().edges:
            target = edge.target
            if target is None:
                continue
            waits[target] = waits.get(target, 0) + 1
            if type(target) is Node and target not in seen:
                seen.add(target)
                stack.append(target)
    return waits
