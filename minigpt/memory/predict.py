"""predict(model, plan): every bucket of a training step, by arithmetic.

The persistent buckets are products: parameters times bytes a parameter (``PRECISIONS``). Activations and
the peak come from running the step on sizes (``tape``, ``ops``, ``forward``): the steady state, when the
optimizer's state is there before the step begins.

    peak = max over instants of (weights + gradients so far + optimizer state + what is saved + what is in use)

and its three usual instants are the backward of the log-softmax, a block's backward, and the optimizer's step.

Left out: the allocator's rounding and fragmentation, the CUDA context, kernels' own scratch, and the few
kilobytes that position bookkeeping allocates. Pure Python: this imports no torch.
"""

from __future__ import annotations

from minigpt.memory.architecture import Architecture
from minigpt.memory.buckets import StepMemory
from minigpt.memory.forward import INT64, Forward
from minigpt.memory.plan import TrainingPlan
from minigpt.memory.tape import OPTIMIZER, WEIGHTS, Storage, Tape

STEP_COUNT = 4  # bytes: torch's AdamW keeps the step as a float32 for each tensor


def predict(model, plan: TrainingPlan) -> StepMemory:
    """The memory of one training step of ``model`` (anything ``Architecture.of`` reads) under ``plan``.

    Raises ValueError for a sequence longer than the model's context.
    """
    architecture = Architecture.of(model)
    if plan.seq_len > architecture.context:
        raise ValueError(f"seq_len is {plan.seq_len}; the model's context is {architecture.context}")
    tape = Tape()
    forward = Forward(tape, architecture, plan)
    state = _optimizer_state(tape, architecture, plan)
    buffers = _buffers(tape, architecture)
    tokens, targets = (tape.constant(plan.tokens, INT64) for _ in range(2))
    for _ in range(plan.accumulation):
        tape.phase = "forward"
        loss = forward.loss(tokens, targets)
        outputs, forward.outputs = forward.outputs, []  # what the last pass returned dies here
        tape.phase = "backward"
        tape.backward(loss)
        tape.block = tape.doing = ""
    tape.phase = "step"
    _optimizer_step(tape, architecture, plan)
    result = tape.result(frozen=sum(storage.nbytes for storage in buffers))
    del loss, outputs, state
    return result


def _optimizer_state(tape: Tape, architecture: Architecture, plan: TrainingPlan) -> list[Storage]:
    """AdamW's two moments and step count for each tensor, and the master copy if the precision has one."""
    if plan.optimizer == "sgd":
        return []
    regime, state = plan.regime, []
    for tensor in architecture.tensors():
        moment = tensor.numel * regime.moments // 2
        state += [Storage(tape, nbytes, OPTIMIZER) for nbytes in (STEP_COUNT, moment, moment)]
        if regime.master:
            state.append(Storage(tape, tensor.numel * regime.master, OPTIMIZER))
    return state


def _buffers(tape: Tape, architecture: Architecture) -> list[Storage]:
    """The rotary frequencies: two float32 vectors of head_dim / 2."""
    if architecture.family in ("minigpt", "gpt2"):
        return []
    return [Storage(tape, 4 * (architecture.head_dim // 2), WEIGHTS) for _ in range(2)]


def _optimizer_step(tape: Tape, architecture: Architecture, plan: TrainingPlan) -> None:
    """AdamW's square roots of v: for all tensors at once (foreach), twice for one (single), none (fused)."""
    if plan.optimizer == "sgd" or plan.optimizer_loop == "fused":
        return
    tape.doing = "square roots of v"
    roots = [tensor.numel * plan.regime.moments // 2 for tensor in architecture.tensors()]
    if plan.optimizer_loop == "foreach":
        alive = [tape.new(nbytes) for nbytes in roots]
    else:
        alive = [tape.new(max(roots)), tape.new(max(roots))]
    del alive
