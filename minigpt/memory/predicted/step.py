"""predict(model, plan): every bucket of a training step, by arithmetic.

The persistent buckets are products: parameters times bytes a parameter (``PRECISIONS``). Activations and
the peak come from running the step on sizes (``engine``, ``families``): the steady state, when the
optimizer's state is there before the step begins.

    peak = max over instants of (weights + gradients so far + optimizer state + what is saved + what is in use)

and its three usual instants are the backward of the log-softmax, a block's backward, and the optimizer's step.

With ``plan.card`` the kernels are CUDA's: cuBLAS's workspaces are booked, softmax and LayerNorm are as CUDA has them,
and its autocast leaves them in float32.

Left out: the allocator's rounding and fragmentation, the CUDA context, the scratch of other kernels, and the few
kilobytes that position bookkeeping allocates. Pure Python: this imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from minigpt.memory.buckets import StepMemory
from minigpt.memory.collector import at_rest
from minigpt.memory.engine.layers import Layers
from minigpt.memory.engine.tape import GRADIENTS, WEIGHTS, Storage, Tape
from minigpt.memory.families import Architecture
from minigpt.memory.gpus import GPUS
from minigpt.memory.plan import TrainingPlan, check_fit
from minigpt.memory.predicted.optimizer import Optimizer, hook

Result = TypeVar("Result")


def predict(model, plan: TrainingPlan) -> StepMemory:
    """The memory of one training step of ``model`` (anything ``Architecture.of`` reads) under ``plan``.

    Raises ValueError, naming the field, for what is not covered.
    """
    return run(model, plan, Tape.result)


@at_rest()
def run(model, plan: TrainingPlan, finish: Callable[[Tape, int], Result]) -> Result:
    """What ``finish(tape, bytes of frozen weights)`` makes of the step, while all that outlives it is still alive."""
    architecture = Architecture.of(model)
    check_fit(architecture, plan)
    architecture.check(plan)
    _refuse(architecture, plan)
    card = GPUS[plan.card] if plan.card else None
    tape = Tape(cuda=card is not None)
    tape.doing = "cuBLAS workspace"
    workspaces = [tape.new((card.workspace,), "uint8") for _ in range(2)] if card else []
    layers = Layers(tape, architecture, plan)
    optimizer = Optimizer(tape, layers, plan)
    if plan.step != "first":
        optimizer.state(layers.trained)
    if plan.optimizer_in_backward:
        tape.hook = hook(optimizer)
    elif plan.zero_grad != "before_forward" and plan.step == "steady":
        _old_gradients(layers)
    tape.doing = "buffers"
    buffers = [Storage(tape, nbytes, WEIGHTS) for nbytes in architecture.buffers()]
    tape.doing = "batch"
    tokens, targets = (tape.new((plan.batch, plan.seq_len), "int64") for _ in range(2))
    given = _given(tape, plan)
    layers.positions = given if plan.sequences == "packed" else None
    loss = outputs = None
    for i in range(plan.accumulation):
        tape.phase, layers.embedded, tape.autocast = "forward", None, plan.autocast_dtype
        loss = architecture.loss(layers, tokens, targets)
        tape.casts.clear()  # autocast forgets its cache when its block ends
        outputs = [*layers.outputs, layers.embedded, *layers.contexts]  # what the last pass returned dies here
        layers.outputs, layers.contexts = [], []
        tape.phase = "backward"
        if plan.zero_grad == "before_backward" and i == 0:
            for value in layers.trained:
                value.source.gradient = None
        tape.backward(loss)
    tape.phase, tape.block = "step", ""
    if not plan.optimizer_in_backward:
        optimizer.update(layers.trained)
    frozen = layers.frozen_bytes() + sum(storage.record.nbytes for storage in buffers)
    result = finish(tape, frozen)
    del tape.keep  # its own method: a cycle
    del loss, outputs, given, workspaces
    return result


def _given(tape: Tape, plan: TrainingPlan):
    """What the batch brings besides tokens and targets: a mask, or position ids, (B, T) of int64."""
    return None if plan.sequences == "plain" else tape.new((plan.batch, plan.seq_len), "int64")


def _old_gradients(layers: Layers) -> None:
    """The last step's gradients, which zero_grad has not freed."""
    for value in layers.trained:
        value.source.gradient = layers.tape.new(value.shape, value.gradient_dtype or value.dtype, bucket=GRADIENTS)


def _refuse(architecture: Architecture, plan: TrainingPlan) -> None:
    """Raise ValueError for what the tape does not know, naming the field."""
    if plan.method != "qlora":
        return
    if plan.step == "first" and any(t.kind == "bias" and "norm" not in t.name for t in architecture.block_tensors()):
        raise ValueError("step is 'first', in which quantized layers cast their biases: allowed here: steady, resumed")
    if plan.quantization == "nf4":
        return
    if plan.quantization in ("gptq", "awq"):
        raise ValueError(f"quantization is {plan.quantization!r}, whose kernels are not followed: predicted: nf4, int8")
    if plan.card:
        raise ValueError(f"card is {plan.card!r}; LLM.int8 is followed as it runs on a CPU: with int8 it must be None")
    if plan.variant == "dora":
        raise ValueError("variant is 'dora'; with quantization 'int8' allowed: lora, rslora")
