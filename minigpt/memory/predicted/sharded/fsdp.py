"""FSDP2 on the tape: torch's ``fully_shard`` of each block, and of the model around them.

    forward     all-gather a block's weights into one flat buffer, copy them out of it, run, free the weights; the
                buffer lives until the next block has its own copies
    backward    the same before a block, whose neighbour's buffer is already under way; after it free the weights, copy
                the gradients into one buffer, reduce-scatter it, keep a shard; the buffer lives until the next block's

The root's group (embeddings, last norm, head) stays gathered from forward to the end of backward. A rank keeps shards
of weights, gradients and the optimizer's state.

Source: torch 2.13, distributed/fsdp/_fully_shard (_fsdp_param_group.py, _fsdp_collectives.py, _fsdp_state.py), in the
order of its statements. Left out: the buffers of the library that sends (gloo's copy of what it reduces, NCCL's); on a
CPU, the copies in which ``chunk_cat`` fills up what does not divide, inside one operation, where no meter sees them.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from minigpt.memory.engine.alone import hooked
from minigpt.memory.engine.layers import Layers
from minigpt.memory.engine.tape import GRADIENTS, ITEMSIZE, WEIGHTS, Leaf, Storage, Tape, Value
from minigpt.memory.families import Architecture
from minigpt.memory.plan import TrainingPlan
from minigpt.memory.predicted.sharded.communication import Sharing
from minigpt.memory.predicted.sharded.gathered import Gathered
from minigpt.memory.predicted.sharded.shards import padded, rows_of

HALF = {"bf16": "bfloat16", "fp16": "float16"}


class Member(NamedTuple):
    """A parameter: this rank's rows of it; the whole; and that one's memory, which is there when it is gathered."""

    shard: Value
    whole: Value
    memory: Gathered


class Group:
    """Parameters that are gathered and reduced together."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.members: list[Member] = []
        self.flat: Value | None = None  # what has been gathered and not yet copied out
        self.whole = False
        self.state = "idle"
        self.places: list[int] = []  # in the order of forward


class FsdpLayers(Layers):
    """The weights as ``fully_shard`` leaves them: a forward reads whole ones, the optimizer a rank's rows."""

    def __init__(self, tape: Tape, architecture: Architecture, plan: TrainingPlan, rank: int) -> None:
        self.rank, self.constants = rank, architecture.constants()
        self.groups = {str(i): Group(f"block {i}") for i in range(architecture.n_layer)}
        self.root = Group("root")
        if tape.cuda and plan.shard_offload == "parameters":
            self.updates_on = Tape()  # the CPU's memory
        super().__init__(tape, architecture, plan)
        self.ranks = Fsdp(self)

    def add(self, name: str, shape: tuple[int, ...], dtype: str, trained: bool) -> Value:
        if name in self.constants:
            return super().add(name, shape, dtype, trained)
        whole = self._deal(name, shape, dtype, HALF.get(self.plan.param_dtype, dtype), trained)
        self.weights[name] = whole
        return whole

    def _deal(self, name: str, shape: tuple[int, ...], dtype: str, computes: str, trained: bool) -> Value:
        """Keeps this rank's rows; returns the whole."""
        tape, place, ranks = self.tape, self.updates_on or self.tape, self.plan.ranks
        place.doing = name
        rows, room = (rows_of(shape, ranks, self.rank), *shape[1:]), padded(shape, ranks)
        shard = Value(Storage(place, room // ranks * ITEMSIZE[dtype], WEIGHTS, rows, dtype), rows, dtype)
        memory = Gathered(tape, room * ITEMSIZE[computes], f"{name}, gathered", shape, computes)
        whole = Value(memory, shape, computes)
        if trained:
            shard.source, whole.source = Leaf(), Leaf(bucket=None)
            self.trained.append(shard)
        parts = name.split(".")
        group = self.groups[parts[1]] if parts[0] == "blocks" else self.root
        group.members.append(Member(shard, whole, memory))
        return whole

    def _add_packed(self, tensor, sizes: list[int]) -> None:
        """bitsandbytes' packed weights are a parameter of bytes, cut as any; their scales are on every rank, and so is
        all of this course's own, which are buffers."""
        if self.own:
            super()._add_packed(tensor, sizes)
            return
        self._deal(tensor.name, (sizes[0], 1), "uint8", "uint8", trained=False)
        self.tape.doing = tensor.name + " scales"
        self.storages += [Storage(self.tape, nbytes, WEIGHTS, (nbytes,), "uint8") for nbytes in sizes[1:]]

    def frozen_bytes(self) -> int:
        members = [member for group in (self.root, *self.groups.values()) for member in group.members]
        kept = {m.shard.storage for m in members if m.shard.source is None and m.shard.storage.tape is self.tape}
        kept |= {self.weights[name].storage for name in self.constants} | set(self.storages)
        return sum(storage.record.nbytes for storage in kept)


class Fsdp(Sharing):
    """What torch's hooks do, in their order."""

    def __init__(self, layers: FsdpLayers) -> None:
        super().__init__()
        self.tape, self.plan, self.root = layers.tape, layers.plan, layers.root
        self.blocks, self.host = list(layers.groups.values()), layers.updates_on
        for group in (self.root, *self.blocks):
            dtypes = sorted({member.shard.dtype for member in group.members if member.shard.source is not None})
            if len(dtypes) > 1:
                text = f"{group.name} trains {' and '.join(dtypes)}, and fully_shard reduces one dtype"
                raise ValueError(f"adapter_dtype is {self.plan.adapter_dtype!r}; {text}")
        self.copied: Value | None = None  # the last buffer of forward, until the next copies are made
        self.order: list[Group] = []
        self.reduced: list[Value] = []  # what was last reduced
        self.inside = False

    # ------------------------------------------------------------ forward

    def forward_begins(self) -> None:
        self.inside = True
        self.root.state = "forward"
        self._gather(self.root)
        self._copy_out(self.root)

    def block_begins(self, i: int, inputs: tuple[Value, ...]) -> tuple[Value, ...]:
        group = self.blocks[i]
        group.state = "forward"
        self._gather(group)
        self._copy_out(group)
        return tuple(hooked(value, partial(self._after_backward, group)) for value in inputs)

    def block_ends(self, i: int, out: Value) -> Value:
        group = self.blocks[i]
        if self.plan.reshard_after_forward:
            self._free(group)
        return self._left(group, out)

    def forward_ends(self, out: Value) -> Value:
        if not self.inside:
            return out
        self.inside, self.copied = False, None
        return self._left(self.root, out)

    def _left(self, group: Group, out: Value) -> Value:
        group.places.append(len(self.order))
        self.order.append(group)
        group.state = "idle"
        return hooked(out, partial(self._before_backward, group))

    # ------------------------------------------------------------ backward

    def _before_backward(self, group: Group) -> None:
        group.state = "backward"
        self._gather(group)
        self._copy_out(group)
        if group.places and (place := group.places.pop()) > 0:
            self._gather(self.order[place - 1])

    def _after_backward(self, group: Group) -> None:
        group.state = "done"
        members = [member for member in group.members if _gradient(member) is not None]
        gradients = [_take(member) for member in members]
        self._free(group)
        self.reduced.clear()
        if members:
            self._reduce(members, gradients)

    def backward_ends(self) -> None:
        for group in (self.root, *self.blocks):
            if group.state != "done":
                self._after_backward(group)
            group.state, group.flat = "idle", None
            group.places.clear()
        self.order.clear()
        self.reduced.clear()

    # ------------------------------------------------------------ collectives

    def _gather(self, group: Group) -> None:
        """Every rank's shards, in one buffer."""
        if group.flat is not None or group.whole:
            return
        tape, cast = self.tape, [m for m in group.members if m.shard.dtype != m.whole.dtype]
        tape.doing = "all-gather"
        share = sum(member.memory.nbytes for member in cast) // self.plan.ranks
        casts = [tape.new((share,), "uint8")] if cast else []
        if self.host is not None:  # from there, each shard by itself
            casts = [self._from_host(member) for member in group.members]
        nbytes = sum(member.memory.nbytes for member in group.members)
        group.flat = tape.new((nbytes,), "uint8")
        self.passes("all-gather", tape.phase, nbytes)
        del casts

    def _from_host(self, member: Member) -> Value:
        """A shard's copy on the card, in the dtype in which it is gathered."""
        room = (member.memory.nbytes // ITEMSIZE[member.whole.dtype] // self.plan.ranks,)
        copy = self.tape.new(room, member.shard.dtype)
        return copy if copy.dtype == member.whole.dtype else self.tape.new(room, member.whole.dtype)

    def _copy_out(self, group: Group) -> None:
        if group.flat is None:
            return
        forward = group.state == "forward"
        before = self.copied if forward else None  # noqa: F841  lives until this returns
        if forward:
            self.copied = None
        for member in group.members:
            member.memory.fill()
        group.whole = True
        if forward:
            self.copied = group.flat
        group.flat = None

    def _free(self, group: Group) -> None:
        for member in group.members:
            member.memory.empty()
        group.whole = False

    def _reduce(self, members: list[Member], gradients: list[Value]) -> None:
        """Reduce-scatter: one buffer of all gradients, then this rank's shard of their mean."""
        tape, ranks = self.tape, self.plan.ranks
        tape.doing = "reduce-scatter"
        dtype = "float32" if self.plan.reduce_dtype == "fp32" else gradients[0].dtype
        numel = sum(padded(member.whole.shape, ranks) for member in members)
        flat = tape.new((numel,), dtype)
        last = gradients[-1]  # noqa: F841  a name in torch's foreach_reduce holds it until that returns
        gradients.clear()
        tape.doing = "reduce-scatter, shard"
        shard = tape.new((numel // ranks,), dtype)
        self.passes("reduce-scatter", tape.phase, flat.nbytes)
        own = members[0].shard.dtype
        if dtype != own:
            shard = tape.new((numel // ranks,), own)
        if self.host is not None:  # each shard is copied to the CPU's memory
            shard = self.host.new((numel // ranks,), own)
        for member in members:
            leaf = member.shard.source
            if leaf.gradient is None:
                shard.storage.record.bucket = GRADIENTS
                leaf.gradient = Value(shard.storage, member.shard.shape, own)
        self.reduced.append(flat)


def _gradient(member: Member) -> Value | None:
    leaf = member.whole.source
    return None if leaf is None else leaf.gradient


def _take(member: Member) -> Value:
    leaf = member.whole.source
    gradient, leaf.gradient = leaf.gradient, None
    return gradient
