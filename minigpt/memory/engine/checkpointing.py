"""Gradient checkpointing on the tape: forget what a block saved, run the block again when backward needs it.

    forward     keeps the block's inputs; every save inside it is only counted
    backward    the first saved tensor asked for runs the block once more, with the saves kept this time

What is recomputed is booked as temporary: it lives for one block's backward. As ``torch.utils.checkpoint`` does
with ``use_reentrant=False``, the second run stops at the last save, and a recomputed tensor is let go as soon as
the node that asked for it has run.

The older kind, ``use_reentrant=True``, is one operation, whose forward records nothing and whose backward is a whole
step: it runs the block again to its end and walks it backward, while what the second run returned is alive. So are the
gradients of that: one that nobody has is a tensor of zeros, such as that of the scores that some blocks return. What
the second run saves is booked as in any forward, under activations.

Selective, what products and attention return is kept in the first run, saved or not, and the second takes it instead of
making it; one that the second run does not come to is kept for nothing. Offloaded, the inputs go to the CPU's memory,
and each comes back as a new tensor for the second run: without a card the copy is as much in memory as the input was,
with one it is not on the card.

Left out: the random number state that torch keeps with each block (5,056 bytes on a CPU).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any
from weakref import ref

from minigpt.memory.engine.tape import Leaf, Storage, Tape, Value

if TYPE_CHECKING:
    from minigpt.memory.engine.layers import Layers


class Stop(Exception):
    """The second run has saved all that the first did."""


class Handle:
    """What a node keeps in the place of a storage: which save of which block."""

    __slots__ = ("block", "index", "__weakref__")

    def __init__(self, block: Checkpointed, index: int) -> None:
        self.block, self.index = block, index

    def unpack(self) -> Storage:
        return self.block.take(self.index)


class Checkpointed:
    """One block between its forward and its backward. It lives as long as a node has a handle on it."""

    def __init__(self, tape: Tape, run: Callable[..., Value], inputs: Sequence[Value], kind: str) -> None:
        self.tape, self.run = tape, run
        self.name, self.selective = tape.block, kind == "selective"
        self.saves: list[ref[Handle]] = []
        self.recomputed: list[Storage | None] = []
        self.products: list[Storage | None] = []
        self.ran_again = False
        self.inputs: Sequence[Value] = () if kind == "offload" else inputs
        self.away = [Away(tape, value) for value in inputs] if kind == "offload" else []
        for value in self.inputs:
            tape.save(value.storage)

    def __del__(self) -> None:
        for value in self.inputs:
            self.tape.let_go(value.storage)
        for storage in self.products:
            if storage is not None:
                self.tape.let_go(storage)

    def make(self, out: tuple) -> Value:
        """A product of the first run."""
        made = self.tape.new(*out)
        self.tape.save(made.storage)
        self.products.append(made.storage)
        return made

    def remember(self, out: tuple) -> Value:
        """The same product in the second run."""
        place = next(i for i, storage in enumerate(self.products) if storage is not None)
        storage, self.products[place] = self.products[place], None
        assert storage is not None
        self.tape.let_go(storage)
        return Value(storage, *out)

    def count(self, storages: Sequence[Storage]) -> Sequence[Any]:
        """What the first run does with its saves."""
        handles = [Handle(self, len(self.saves) + i) for i in range(len(storages))]
        self.saves += map(ref, handles)
        return handles

    def keep(self, storages: Sequence[Storage]) -> Sequence[Storage]:
        """What the second run does with them. Raises Stop at the last one."""
        for storage in storages:
            wanted = self.saves[len(self.recomputed)]() is not None  # its node may have died without a backward
            self.recomputed.append(storage if wanted else None)
        if len(self.recomputed) == len(self.saves):
            raise Stop
        return storages

    def take(self, index: int) -> Storage:
        if not self.ran_again:
            self._again()
        storage, self.recomputed[index] = self.recomputed[index], None
        assert storage is not None, "a saved tensor is asked for once, by its own node"
        return storage

    def _again(self) -> None:
        tape = self.tape
        place = tape.block, tape.doing
        tape.block, self.ran_again, tape.keep = f"{self.name}, run again", True, self.keep
        tape.running_again, tape.product = True, self.remember if self.selective else None
        inputs = self.inputs or [away.back(tape) for away in self.away]
        try:
            self.run(*inputs)
        except Stop:
            pass
        tape.running_again, tape.product = False, None
        tape.keep, (tape.block, tape.doing) = tape.keep_saved, place
        tape.casts.clear()  # the second run has an autocast of its own, which ends here


class Away:
    """An input in the CPU's memory."""

    __slots__ = ("host", "out", "source", "output")

    def __init__(self, tape: Tape, value: Value) -> None:
        self.out, self.source, self.output = (value.shape, value.dtype, value.strides), value.source, value.output
        self.host = tape.new(*self.out) if tape.counts_host else None
        tape.work.moved += value.nbytes

    def back(self, tape: Tape) -> Value:
        value = tape.new(*self.out)
        value.source, value.output = self.source, self.output
        return value


def checkpoint(tape: Tape, run: Callable[..., Value], inputs: Sequence[Value], kind: str = "full") -> Value:
    """``run(*inputs)`` without keeping what it saves; ``kind`` is the plan's word."""
    block = Checkpointed(tape, run, inputs, kind)
    tape.keep, tape.product = block.count, block.make if block.selective else None
    del block
    out = run(*inputs)
    tape.keep, tape.product = tape.keep_saved, None
    return out


def in_a_row(tape: Tape, blocks: dict[int, Callable[..., Value]], x: Value) -> Value:
    """Several blocks as one, by their numbers."""
    for i, block in blocks.items():
        tape.block = f"block {i}, run again" if tape.running_again else f"block {i}"
        x = block(x)
    return x


def checkpoint_reentrant(layers: Layers, run: Callable[..., Value], inputs: Sequence[Value]) -> Value:
    """``run(*inputs)`` as torch's CheckpointFunction does it. Without an input that takes a gradient nothing will."""
    tape, name = layers.tape, layers.tape.block
    tape.records_nothing = True
    out = run(*inputs)
    tape.records_nothing = False
    if all(value.source is None for value in inputs):
        return out
    tape.contexts.append(run)  # and with it whatever else the block is given
    kept: list[tuple[Any, ...]] = [(x.storage, x.shape, x.dtype, x.strides, x.source is not None) for x in inputs]
    beside = layers.beside and (layers.beside.shape, layers.beside.dtype)

    def backward(gradient: Value) -> list[Value | None]:
        tape.block, tape.doing = f"{name}, run again", "zeros"
        gradients = [gradient] + ([tape.new(*beside)] if beside else [])  # a second output's is made of zeros
        leaves = [Leaf(strides, bucket=None) if wanted else None for *_, strides, wanted in kept]
        detached = [
            Value(storage, shape, dtype, strides, leaf)
            for (storage, shape, dtype, strides, _), leaf in zip(kept, leaves, strict=True)
        ]
        before, tape.contexts = tape.contexts, []
        outputs = [run(*detached)]
        if layers.beside is not None:
            outputs.append(layers.beside)
            layers.beside = None
        tape.casts.clear()  # the second run has an autocast of its own, which ends here
        tape.backward_from(outputs, gradients)
        tape.contexts = before
        return [leaf.gradient if leaf else None for leaf in leaves]

    return tape.record("checkpoint", inputs, out, [value.storage for value in inputs], backward)
