"""ZeRO by hand (``minigpt.sharding``) on the tape: groups of trained weights as flat vectors, a part to each rank.

    zero1    after the last backward the gradients of a group become one vector, reduce-scattered; a rank updates its
             part, and gathers the others'
    zero2    the same as soon as the last gradient of a group is there
    zero3    weights, too, are gathered for a block's forward, and again for its backward, and freed after both

A group is a block, or what is outside of blocks. What is frozen stays whole on every rank.
"""

from __future__ import annotations

from functools import partial

from minigpt.memory.engine.alone import hooked
from minigpt.memory.engine.layers import Layers
from minigpt.memory.engine.tape import GRADIENTS, ITEMSIZE, WEIGHTS, Leaf, Storage, Tape, Value
from minigpt.memory.families import Architecture
from minigpt.memory.plan import TrainingPlan
from minigpt.memory.predicted.sharded.communication import Sharing
from minigpt.memory.predicted.sharded.gathered import Gathered


class Flat:
    """A group: ``members`` are views of ``whole``; a rank updates ``shard``, (length,)."""

    def __init__(self, tape: Tape, name: str, values: list[Value], plan: TrainingPlan) -> None:
        dtypes = {value.dtype for value in values}
        if len(dtypes) > 1:
            both = " and ".join(sorted(dtypes))
            raise ValueError(f"sharding is {plan.sharding!r}; {name} trains {both}, and a flat vector has one dtype")
        (self.dtype,) = dtypes
        numel = sum(value.numel for value in values)
        self.length = -(-numel // plan.ranks)
        self.padding = plan.ranks * self.length - numel
        self.members: list[Value] = []
        nbytes, part = plan.ranks * self.length * ITEMSIZE[self.dtype], self.length * ITEMSIZE[self.dtype]
        tape.doing = f"{name}, flat"
        if plan.sharding == "zero3":
            self.whole: Storage = Gathered(tape, nbytes, f"{name}, gathered", (nbytes,), self.dtype)
            self.own = Storage(tape, part, WEIGHTS, (self.length,), self.dtype)
        else:
            self.whole = self.own = Storage(tape, nbytes, WEIGHTS, (plan.ranks * self.length,), self.dtype)
        self.nbytes = nbytes
        self.shard = Value(self.own, (self.length,), self.dtype)
        self.shard.source = Leaf()
        self.left = len(values)  # gradients that have not arrived


class FlatLayers(Layers):
    """The weights with those that are trained in flat vectors; the optimizer has the shards."""

    def __init__(self, tape: Tape, architecture: Architecture, plan: TrainingPlan) -> None:
        plain = Layers(Tape(), architecture, plan)
        parameters = {value for name, value in plain.weights.items() if name not in architecture.constants()}
        if plan.sharding == "zero3" and len(plain.trained) < len(parameters):
            raise ValueError(f"method is {plan.method!r}; with sharding 'zero3' every weight must be trained")
        names = {value: name for name, value in reversed(plain.weights.items())}  # a tied one's first name
        groups: dict[str, list[Value]] = {}
        for value in plain.trained:
            parts = names[value].split(".")
            groups.setdefault(f"block {parts[1]}" if parts[0] == "blocks" else "root", []).append(value)
        if "root" in groups:
            groups["root"] = groups.pop("root")  # the last
        self.flats = {name: Flat(tape, name, values, plan) for name, values in groups.items()}
        self.group_of = {names[value]: name for name, values in groups.items() for value in values}
        super().__init__(tape, architecture, plan)
        self.trained = [flat.shard for flat in self.flats.values()]
        self.ranks = RANKS[plan.sharding](self)

    def add(self, name: str, shape: tuple[int, ...], dtype: str, trained: bool) -> Value:
        if not trained:
            return super().add(name, shape, dtype, trained)
        flat = self.flats[self.group_of[name]]
        value = Value(flat.whole, shape, dtype)
        value.source = Leaf(bucket=None if self.plan.sharding == "zero3" else GRADIENTS)
        flat.members.append(value)
        self.weights[name] = value
        return value


class Zero1(Sharing):
    """Reduces when the step begins."""

    def __init__(self, layers: FlatLayers) -> None:
        super().__init__()
        self.tape, self.plan, self.flats = layers.tape, layers.plan, layers.flats

    def step_begins(self) -> None:
        for flat in self.flats.values():
            self._reduce(flat)

    def step_ends(self) -> None:
        for flat in self.flats.values():
            self.passes("all-gather", "step", flat.nbytes)

    def _reduce(self, flat: Flat) -> None:
        """One vector of all gradients, then this rank's part of its mean, added to what is there."""
        tape = self.tape
        tape.doing = "reduce-scatter"
        gradients = [_gradient_of(value) or tape.new(value.shape, value.dtype) for value in flat.members]
        zeros = tape.new((flat.padding,), flat.dtype)
        vector = tape.new((self.plan.ranks * flat.length,), flat.dtype)
        del zeros
        gradients.clear()
        for value in flat.members:
            value.source.gradient = None
        self.passes("reduce-scatter", tape.phase, vector.nbytes)
        mean = tape.new((flat.length,), flat.dtype)
        del vector
        leaf = flat.shard.source
        if leaf.gradient is not None:
            mean = tape.new((flat.length,), flat.dtype)
        mean.storage.record.bucket = GRADIENTS
        leaf.gradient = mean


class Zero2(Zero1):
    """Reduces a group when its last gradient is there."""

    def __init__(self, layers: FlatLayers) -> None:
        super().__init__(layers)
        self.owners = {value.source: flat for flat in self.flats.values() for value in flat.members}
        self.tape.hook = self._arrived

    def step_begins(self) -> None:
        pass

    def _arrived(self, leaf: Leaf) -> None:
        flat = self.owners.get(leaf)
        if flat is None:
            return
        flat.left -= 1
        if not flat.left:
            flat.left = len(flat.members)
            doing = self.tape.doing
            self._reduce(flat)
            self._free(flat)
            self.tape.doing = doing

    def _free(self, flat: Flat) -> None:
        pass


class Zero3(Zero2):
    """Gathers and frees weights, too."""

    def forward_begins(self) -> None:
        self._gather("root")

    def block_begins(self, i: int, inputs: tuple[Value, ...]) -> tuple[Value, ...]:
        self._gather(f"block {i}")
        return inputs

    def block_ends(self, i: int, out: Value) -> Value:
        self._free(self.flats[f"block {i}"])
        return hooked(out, partial(self._gather, f"block {i}"))

    def step_ends(self) -> None:
        pass

    def _gather(self, name: str) -> None:
        whole = self.flats[name].whole
        assert isinstance(whole, Gathered)
        if not whole.filled:
            whole.fill()
        self.passes("all-gather", self.tape.phase, self.flats[name].nbytes)

    def _free(self, flat: Flat) -> None:
        assert isinstance(flat.whole, Gathered)
        flat.whole.empty()


RANKS = {"zero1": Zero1, "zero2": Zero2, "zero3": Zero3}


def _gradient_of(value: Value) -> Value | None:
    return value.source.gradient
