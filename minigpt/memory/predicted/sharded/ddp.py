"""torch's DistributedDataParallel on the tape: every rank has all, and buckets through which gradients are averaged.

A bucket is a flat vector for gradients that are reduced together: 1 MiB for the first, 25 MiB for the others, in the
order in which gradients arrive. All of them live as long as the training and have as many bytes as all gradients. Each
gradient is copied in when it is there, and its mean is copied out; with ``gradient_as_bucket_view`` it stays in it.

Source: torch 2.13, csrc/distributed/c10d/reducer.cpp. The buckets of the first step are laid out anew in the second,
by what it saw; followed is a step after that.
"""

from __future__ import annotations

from minigpt.memory.engine.layers import Layers, Loaded
from minigpt.memory.engine.tape import GRADIENTS, ITEMSIZE, Leaf, Storage, Tape, Value
from minigpt.memory.families import Architecture
from minigpt.memory.plan import TrainingPlan
from minigpt.memory.predicted.sharded.communication import Sharing

FIRST, OTHERS = 1024**2, 25 * 1024**2  # bytes of a bucket, at which it is full


class DdpLayers(Layers):
    """The weights as one process has them, and the buckets."""

    def __init__(
        self, tape: Tape, architecture: Architecture, plan: TrainingPlan, loaded: Loaded | None = None
    ) -> None:
        super().__init__(tape, architecture, plan, loaded)
        self.ranks = Ddp(self)


class Ddp(Sharing):
    def __init__(self, layers: DdpLayers) -> None:
        super().__init__()
        tape, self.views = layers.tape, layers.plan.gradient_as_bucket_view
        self.sizes: list[int] = []
        self.places: dict[Leaf, tuple[Storage, Value]] = {}
        tape.doing = "bucket"
        for bucket in buckets(layers.trained):
            nbytes = sum(value.nbytes for value in bucket)
            self.sizes.append(nbytes)
            storage = Storage(tape, nbytes, GRADIENTS if self.views else None, (nbytes,), bucket[0].dtype)
            self.places |= {value.source: (storage, value) for value in bucket}
        if self.views:
            tape.hook = self._arrived
        constants = [layers[name].nbytes for name in layers.architecture.constants()]
        packed = [storage.record.nbytes for storage in layers.storages] if layers.own else []  # which are buffers there
        self.buffers = sum([*layers.architecture.buffers(), *constants, *packed])

    def forward_begins(self) -> None:
        """All take rank 0's buffers."""
        if self.buffers:
            self.passes("broadcast", "forward", self.buffers)

    def backward_ends(self) -> None:
        for nbytes in self.sizes:
            self.passes("all-reduce", "backward", nbytes)

    def _arrived(self, leaf: Leaf) -> None:
        """The gradient moves into its bucket."""
        if leaf in self.places:
            storage, value = self.places[leaf]
            leaf.gradient = Value(storage, value.shape, value.dtype)


def buckets(trained: list[Value]) -> list[list[Value]]:
    """The parameters of each bucket, the last of the model first; those of another dtype have buckets of their own."""
    found: list[list[Value]] = []
    for dtype in dict.fromkeys(value.dtype for value in trained):
        full, bucket = FIRST, list[Value]()
        for value in reversed([value for value in trained if value.dtype == dtype]):
            bucket.append(value)
            if sum(value.numel * ITEMSIZE[dtype] for value in bucket) >= full:
                found.append(bucket)
                full, bucket = OTHERS, []
        found += [bucket] if bucket else []
    return found
