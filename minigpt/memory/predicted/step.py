"""predict(model, plan): every bucket of a training step, by arithmetic.

The persistent buckets are products: parameters times bytes a parameter (``PRECISIONS``). Activations and
the peak come from running the step on sizes (``tape``, ``ops``, ``forward``): the steady state, when the
optimizer's state is there before the step begins.

    peak = max over instants of (weights + gradients so far + optimizer state + what is saved + what is in use)

and its three usual instants are the backward of the log-softmax, a block's backward, and the optimizer's step.

With ``plan.card`` the kernels are CUDA's: cuBLAS's workspaces are booked, and softmax and LayerNorm as CUDA has them.

Left out: the allocator's rounding and fragmentation, the CUDA context, the scratch of other kernels, what CUDA's
autocast keeps in float32 that a CPU's does not, and the few kilobytes that position bookkeeping allocates. Pure Python:
this imports no torch.
"""

from __future__ import annotations

from minigpt.memory.buckets import StepMemory
from minigpt.memory.engine.tape import GRADIENTS, OPTIMIZER, WEIGHTS, Storage, Tape
from minigpt.memory.families.architecture import Architecture
from minigpt.memory.families.forward import INT64, Forward
from minigpt.memory.gpus import GPUS
from minigpt.memory.plan import TrainingPlan, check_fit

STEP_COUNT = 4  # bytes: torch's AdamW keeps the step as a float32 for each tensor


def predict(model, plan: TrainingPlan) -> StepMemory:
    """The memory of one training step of ``model`` (anything ``Architecture.of`` reads) under ``plan``.

    Raises ValueError for a sequence longer than the model's context, or for dropout.
    """
    architecture = Architecture.of(model)
    if architecture.dropout:
        raise ValueError(
            f"dropout is {architecture.dropout}; only 0 is covered, because masks and attention with dropout take "
            "other kernels: set resid_pdrop, embd_pdrop and attn_pdrop to 0"
        )
    check_fit(architecture, plan)
    _refuse(plan)
    card = GPUS[plan.card] if plan.card else None
    tape = Tape(cuda=card is not None)
    workspaces = [tape.new(card.workspace) for _ in range(2)] if card else []
    forward = Forward(tape, architecture, plan)
    trained = forward.linear.trained
    state = _optimizer_state(tape, trained, plan)
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
    _optimizer_step(tape, trained, plan)
    result = tape.result(frozen=forward.linear.frozen_bytes() + sum(storage.nbytes for storage in buffers))
    del loss, outputs, state, workspaces
    return result


NOT_PREDICTED = (
    "autocast", "lora_dropout", "modules_to_save", "quantization", "optimizer_in_backward", "zero_grad", "step",
    "sequences", "loss", "logits_to_keep",
)  # fmt: skip


def _refuse(plan: TrainingPlan) -> None:
    """Raise ValueError for a switch of the plan that the tape does not know yet."""
    for name in NOT_PREDICTED:
        if getattr(plan, name) != TrainingPlan.__dataclass_fields__[name].default:
            raise ValueError(f"{name} is {getattr(plan, name)!r}, which is measured only, not predicted")
    if plan.optimizer not in ("adamw", "adamw8bit", "sgd"):
        raise ValueError(f"optimizer is {plan.optimizer!r}, which is measured only; predicted: adamw, adamw8bit, sgd")


def _optimizer_state(tape: Tape, trained: list[tuple[int, int]], plan: TrainingPlan) -> list[Storage]:
    """What the optimizer keeps for each (numel, itemsize): moments, a step count, a master copy, a second gradient."""
    if plan.optimizer == "sgd":
        return []
    if plan.optimizer == "adamw8bit":
        return _eight_bit_state(tape, trained)
    regime, state = plan.regime, []
    for numel, itemsize in trained:
        moment = numel * _moment_itemsize(itemsize, plan)
        state += [Storage(tape, nbytes, OPTIMIZER) for nbytes in (moment, moment, numel * regime.master)]
        if not regime.float32_update:
            state.append(Storage(tape, STEP_COUNT, OPTIMIZER))
        if regime.gradients > 4:
            state.append(Storage(tape, numel * 4, GRADIENTS))
    return state


def _moment_itemsize(itemsize: int, plan: TrainingPlan) -> int:
    """AdamW's moments have the weight's precision, unless the update is made in float32."""
    return 4 if plan.regime.float32_update else itemsize


def _eight_bit_state(tape: Tape, trained: list[tuple[int, int]]) -> list[Storage]:
    """bitsandbytes: one byte an element and a float32 scale each 256, twice; float32 under 4,096 elements."""
    state = []
    for numel, _ in trained:
        if numel < 4096:
            sizes = [4 * numel] * 2
        else:
            sizes = [numel, 4 * -(-numel // 256)] * 2
        state += [Storage(tape, nbytes, OPTIMIZER) for nbytes in sizes]
    if any(numel >= 4096 for numel, _ in trained):
        state += [Storage(tape, 1024, OPTIMIZER) for _ in range(2)]  # the two 8-bit maps, shared
    return state


def _buffers(tape: Tape, architecture: Architecture) -> list[Storage]:
    """The rotary frequencies: two float32 vectors of head_dim / 2."""
    if architecture.family in ("minigpt", "gpt2"):
        return []
    return [Storage(tape, 4 * (architecture.head_dim // 2), WEIGHTS) for _ in range(2)]


def _optimizer_step(tape: Tape, trained: list[tuple[int, int]], plan: TrainingPlan) -> None:
    """What the update makes on the way. A loop over tensors needs it for one of them only, more or less."""
    if plan.optimizer in ("sgd", "adamw8bit"):  # the latter's scratch is inside its kernel
        return
    tape.doing = "square roots of v"
    regime, alive = plan.regime, []
    roots = [numel * _moment_itemsize(itemsize, plan) for numel, itemsize in trained]
    if regime.float32_update:  # minigpt.precision.MasterAdamW: the root, the root scaled, and what needs a cast
        casts = (regime.gradients == 2) + (not regime.master)
        alive = [tape.new(max(roots)) for _ in range(2 + casts)]
    elif plan.optimizer_loop == "foreach":  # the roots of all tensors at once
        alive = [tape.new(nbytes) for nbytes in roots]
    elif plan.optimizer_loop == "single":  # the root, the root scaled, and the last tensor's, still bound
        alive = [tape.new(max(before + 2 * nbytes for before, nbytes in zip([0, *roots], roots)))]
    del alive
