"""Autograd on sizes: a tape that runs a training step without numbers.

A ``Value`` stands for a tensor: its shape, its strides, its dtype, and the ``Storage`` that holds it. Operations
(``minigpt.memory.engine.ops``) make new values and leave a ``Node`` with what backward will need. ``backward`` then
walks the nodes as torch's engine does: latest first, gradients summed where paths meet, saved tensors let go once
their node has run.

Rules of torch's engine that matter to the peak, each visible in the profiler's events:

    a node's new gradients exist together with its incoming gradient and everything it saved
    a gradient is summed over what was broadcast, and cast, before its node lets go of what it saved
    two gradients of one value are summed in place if nothing else refers to the first one or to its storage ...
    ... which is never so for a view, whose base refers to the storage too: that makes a third tensor
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from math import prod
from sys import getrefcount
from typing import Any

from minigpt.memory.engine import layout
from minigpt.memory.engine.account import Account
from minigpt.memory.engine.graph import (
    GRADIENTS,
    ITEMSIZE,
    OPTIMIZER,
    WEIGHTS,
    Edge,
    Leaf,
    Node,
    Record,
    Storage,
    Value,
)
from minigpt.memory.engine.kernels import Kernels
from minigpt.memory.engine.layout import Shape, Strides
from minigpt.memory.engine.work import Work

# The operations whose results a selective checkpoint keeps.
PRODUCTS = ("linear", "matmul", "attention", "experts", "fold")

__all__ = ["GRADIENTS", "ITEMSIZE", "OPTIMIZER", "WEIGHTS", "Leaf", "Record", "Storage", "Tape", "Value"]


class Tape(Account):
    """One step, as it runs, and its account. All sizes are bytes.

    ``autocast`` is the dtype that matrix products cast to on the fly, or None; ``cuda`` whether CUDA's kernels run,
    where they differ from a CPU's.
    """

    def __init__(self, cuda: bool = False, autocast: str | None = None) -> None:
        super().__init__()
        self.cuda, self.autocast = cuda, autocast
        self.kernels = Kernels()  # what they ask for beside their results
        self.counts_host = not cuda  # whether the CPU's memory is that of the model
        self.casts: dict[Leaf, Value] = {}  # by the leaf: autocast's cache, for as long as its block lasts
        self._nodes = 0
        self.recomputed: list[Storage] = []  # what the running node asked a checkpointed block for
        self.keep = self.keep_saved  # what a node does with what it saves; a checkpointed block has its own ways
        self.running_again = False  # a checkpointed block, in backward
        self.product: Callable[[tuple], Value] | None = None  # makes what a selective checkpoint keeps
        self.records_nothing = False  # torch.no_grad
        self.training = True  # else nothing is dropped
        self.work = Work()
        self.contexts: list[Any] = []  # what nodes hold as attributes, until their graph dies
        self.hook: Callable[[Leaf], None] | None = None  # runs when a leaf has its gradient

    def new(self, shape: Shape, dtype: str, strides: Strides = None, bucket: int | None = None) -> Value:
        """A tensor in a storage of its own."""
        return Value(Storage(self, prod(shape) * ITEMSIZE[dtype], bucket, shape, dtype), shape, dtype, strides)

    # ------------------------------------------------------------ forward

    def record(
        self,
        name: str,
        inputs: Sequence[Value],
        out: Any,
        saves: Sequence[Storage] = (),
        backward: Callable | None = None,
        saves_output: bool = False,
        outputs: int = 1,
    ) -> Value:
        """Make ``out`` the result of an operation on ``inputs`` that saves ``saves`` for backward.

        ``out`` is a view, which shares a storage, or (shape, dtype, strides) of a tensor to make: after the saving, as
        torch does, unless it is saved itself. Without an input that takes a gradient nothing is recorded or saved.
        """
        self.doing = name
        for value in inputs:
            if value.source is not None:
                break
        else:
            return self.made(name, out) if isinstance(out, tuple) else out
        if self.records_nothing:
            return self.new(*out) if isinstance(out, tuple) else out
        made = out if isinstance(out, Value) else None
        if saves_output and isinstance(out, tuple):
            made = self.made(name, out)
            saves = (*saves, made.storage)
        saved = self.keep(saves) if saves else ()
        if made is None:
            made = self.made(name, out)
        self._nodes += 1
        edges = [Edge(value) for value in inputs]
        made.source = Node(name, self.block, self._nodes, edges, saved, backward, outputs)
        return made

    def made(self, name: str, out: tuple) -> Value:
        """The result of an operation: new, but for a product that a selective checkpoint keeps, or has kept."""
        if self.product is not None and name in PRODUCTS:
            return self.product(out)
        return self.new(*out)

    def refuse_in_place(self, what: str) -> None:
        """Raise ValueError where C++ writes into a product, which under a selective checkpoint's mode it does not."""
        if self.product is not None:
            raise ValueError(f"checkpointing is 'selective'; {what} is added in place to what that keeps")

    @property
    def remembers(self) -> bool:
        """Whether products are not made again, since a selective checkpoint has kept them."""
        return self.running_again and self.product is not None

    def multiplied(self, *sizes: int) -> None:
        """A product of forward's, of matrices of these sizes, unless it was kept."""
        if not self.remembers:
            self.work.product(self.phase, *sizes)

    def keep_saved(self, storages: Sequence[Storage]) -> Sequence[Storage]:
        """What a node saves becomes an activation, if it is nothing else."""
        for storage in storages:
            self.save(storage)
        return storages

    # ------------------------------------------------------------ backward

    def backward(self, loss: Value) -> None:
        """Give every leaf its gradient, freeing the graph on the way."""
        self.backward_from((loss,), [self.new(loss.shape, loss.dtype)])  # the 1 that it starts from lives to the end

    def backward_from(self, roots: Sequence[Value], given: list[Value]) -> None:
        """The same from several values, each with the gradient that it is ``given``."""
        root = Node("", self.block, self._nodes, [Edge(value) for value in roots], (), lambda: list(given), 0)
        waits = _dependents(root)
        pending: dict[Node | Leaf, list] = {root: []}
        count = 0
        ready: list[Any] = [(-root.order, count, root)]
        for value in roots:
            value.source = None
        del root
        while ready:
            node = heapq.heappop(ready)[2]
            incoming = pending.pop(node)
            if type(node) is Leaf:
                self._accumulate(node, incoming)
                del incoming
                continue
            self.block, self.doing = node.block, node.name
            # All of what is saved are handles, or none.
            handles = node.saved if node.saved and not isinstance(node.saved[0], Storage) else ()
            if handles:
                self.recomputed = [handle.unpack() for handle in handles]
            gradients = node.backward(*incoming)
            self.recomputed.clear()
            edges = node.edges
            self._validate(edges, gradients)
            del incoming
            for item in () if handles else node.saved:
                self.let_go(item)
            node.edges, node.saved, node.backward = (), (), None
            del handles
            item = None
            gradients.reverse()
            for edge in edges:
                gradient, target = gradients.pop(), edge.target
                if target is None:
                    continue
                slots = pending.get(target)
                if slots is None:
                    slots = pending[target] = [None] * (target.outputs if type(target) is Node else 1)
                if slots[edge.output] is None:
                    slots[edge.output] = gradient
                else:
                    self._sum(slots, edge.output, gradient)
                gradient = None
                waits[target] -= 1
                if not waits[target]:
                    count += 1
                    heapq.heappush(ready, (-target.order, count, target))
            node = edge = edges = target = slots = None

    def _validate(self, edges: Sequence[Edge], gradients: list) -> None:
        """Sum each gradient over what was broadcast in its input, then cast it to its input's dtype."""
        for i, edge in enumerate(edges):
            gradient = gradients[i]
            if gradient is None:
                continue
            if edge.target is None:
                gradients[i] = None
                continue
            if gradient.shape != edge.shape:
                gradients[i] = gradient = self._sum_to(gradient, edge.shape)
            if gradient.dtype != edge.dtype:
                gradients[i] = self.new(gradient.shape, edge.dtype, gradient.strides)

    def _sum_to(self, gradient: Value, shape: Shape) -> Value:
        leading = len(gradient.shape) - len(shape)
        total = self.new((1,) * leading + shape, gradient.dtype)
        self.kernels.reduction(gradient, tuple(i + leading for i, n in enumerate(shape) if n != 1))
        return Value(total.storage, shape, gradient.dtype, base=total) if leading else total

    def _sum(self, slots: list, place: int, new: Value | None) -> None:
        old = slots[place]
        if new is None:
            return
        if (
            getrefcount(old) <= ALONE
            and getrefcount(old.storage) <= ALONE_STORAGE
            and layout.dense(old.shape, old.strides)
        ):
            return  # in place
        shape, strides = layout.elementwise((old.layout, new.layout))
        slots[place] = self.new(shape, old.dtype, strides)

    def _accumulate(self, leaf: Leaf, incoming: list) -> None:
        """The gradient becomes ``.grad`` as it is, or is added to it."""
        gradient = incoming.pop()
        if gradient is None:
            return
        if leaf.gradient is None:
            if getrefcount(gradient) > TAKEN or layout.plain(gradient.shape, gradient.strides) != leaf.strides:
                gradient = self.new(gradient.shape, gradient.dtype, leaf.strides)
            leaf.gradient = Value(gradient.storage, gradient.shape, gradient.dtype, gradient.strides)
            if leaf.bucket is not None and gradient.storage.record.bucket is None:
                gradient.storage.record.bucket = leaf.bucket  # from its birth on, as the meter has it
        if self.hook is not None:
            gradient = None
            self.hook(leaf)


def _dependents(root: Node) -> dict[Node | Leaf, int]:
    """How many gradients each node and leaf will be sent."""
    waits: dict[Node | Leaf, int] = {}
    stack = [root]
    while stack:
        for edge in stack.pop().edges:
            target = edge.target
            if target in waits:
                waits[target] += 1
            elif target is not None:
                waits[target] = 1
                if type(target) is Node:
                    stack.append(target)
    return waits


def _alone() -> tuple[int, int, int]:
    """What getrefcount says, where ``_sum`` and ``_accumulate`` ask, of a value to which nothing else refers.

    Python versions differ in how many references a call makes, so it is asked here once, in the same form.
    """
    tape = Tape()
    slots, found = [tape.new((1,), "float32")], list[int]()

    def asked(slots: list, place: int) -> None:
        old = slots[place]
        found.extend([getrefcount(old), getrefcount(old.storage)])

    def taken(incoming: list) -> None:
        gradient = incoming.pop()
        found.append(getrefcount(gradient))

    asked(slots, 0)
    taken(slots)
    return found[0], found[1], found[2]


ALONE, ALONE_STORAGE, TAKEN = _alone()
