"""What is there before the first forward: the model, the optimizer and its state, on a tape."""

from __future__ import annotations

from typing import NamedTuple

from minigpt.memory.engine.layers import Layers
from minigpt.memory.engine.tape import WEIGHTS, Storage, Tape, Value
from minigpt.memory.families import Architecture
from minigpt.memory.gpus import GPUS
from minigpt.memory.plan import TrainingPlan
from minigpt.memory.predicted import loading
from minigpt.memory.predicted.cuda import CudaKernels
from minigpt.memory.predicted.optimizer import Optimizer
from minigpt.memory.predicted.sharded.choosing import layers_of
from minigpt.memory.room import check_fit


class Start(NamedTuple):
    """What is there before the first forward: the tape, and what lies on it."""

    architecture: Architecture
    tape: Tape
    layers: Layers
    optimizer: Optimizer
    buffers: list[Storage]

    def frozen(self) -> int:
        """The bytes of weights and buffers that nothing trains. A step may change them: it casts frozen biases."""
        return self.layers.frozen_bytes() + sum(storage.record.nbytes for storage in self.buffers)


def start(model, plan: TrainingPlan, kind: type[Tape] = Tape, *, cold: bool = False, rank: int = 0) -> Start:
    """The model, the optimizer and its state, on a tape of this ``kind``.

    ``cold``: as a card finds it that has done nothing yet: the model is loaded, and cuBLAS has no workspaces.
    Raises ValueError, naming the field, for what is not covered.
    """
    architecture = Architecture.of(model)
    check_fit(architecture, plan)
    architecture.check(plan)
    card = GPUS[plan.card] if plan.card else None
    tape = kind(cuda=card is not None)
    if card is not None:
        tape.kernels = CudaKernels(card.workspace, card.processors, card.threads, card.capability)
        if not cold and plan.step != "first":
            tape.kernels.begin(tape)
    pieces = cold and plan.sharding in ("none", "ddp") and loading.loads_in_pieces(architecture, plan)
    layers = layers_of(tape, architecture, plan, rank, loading.load(tape, architecture, plan) if pieces else None)
    optimizer = Optimizer(layers.updates_on or tape, layers, plan)
    if plan.step != "first":
        optimizer.state(layers.trained)
    tape.doing = "buffers"
    buffers = [Storage(tape, nbytes, WEIGHTS) for nbytes in architecture.buffers()]
    return Start(architecture, tape, layers, optimizer, buffers)


def make_batch(tape: Tape, plan: TrainingPlan) -> list[Value]:
    """Tokens and targets, and what tells padding or packing: a mask, or position ids; each (B, T) of int64."""
    tape.doing = "batch"
    return [tape.new((plan.batch, plan.seq_len), "int64") for _ in range(2 + (plan.sequences != "plain"))]
