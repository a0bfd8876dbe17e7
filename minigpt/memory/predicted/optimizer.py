"""What an optimizer keeps from step to step, and what its update makes on the way."""

from __future__ import annotations

from minigpt.memory.engine.layers import Layers
from minigpt.memory.engine.tape import GRADIENTS, ITEMSIZE, OPTIMIZER, Storage, Tape
from minigpt.memory.plan import TrainingPlan

STEP_COUNT = 4  # bytes: torch's AdamW keeps the step as a float32 for each tensor


def optimizer_state(tape: Tape, layers: Layers, plan: TrainingPlan) -> list[Storage]:
    """What the optimizer keeps for each trained tensor: moments, a step count, a master copy, a second gradient."""
    if plan.optimizer == "sgd":
        return []
    tape.doing = plan.optimizer
    sizes = [(value.numel, ITEMSIZE[value.dtype]) for value in layers.trained]
    if plan.optimizer == "adamw8bit":
        return _eight_bit_state(tape, [numel for numel, _ in sizes])
    regime, state = plan.regime, []
    for numel, itemsize in sizes:
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


def _eight_bit_state(tape: Tape, numels: list[int]) -> list[Storage]:
    """bitsandbytes: two moments, each one byte per element plus one float32 scale per 256; float32 under 4,096."""
    state = []
    for numel in numels:
        sizes = [4 * numel] * 2 if numel < 4096 else [numel, 4 * -(-numel // 256)] * 2
        state += [Storage(tape, nbytes, OPTIMIZER) for nbytes in sizes]
    if any(numel >= 4096 for numel in numels):
        state += [Storage(tape, 1024, OPTIMIZER) for _ in range(2)]  # the two 8-bit maps, shared
    return state


def optimizer_step(tape: Tape, layers: Layers, plan: TrainingPlan) -> None:
    """What the update makes on the way: foreach holds all square roots at once; single, about one tensor's."""
    if plan.optimizer in ("sgd", "adamw8bit"):  # the latter's scratch is inside its kernel
        return
    tape.doing = "square roots of v"
    regime, alive = plan.regime, []
    roots = [value.numel * _moment_itemsize(ITEMSIZE[value.dtype], plan) for value in layers.trained]
    if regime.float32_update:  # minigpt.precision.MasterAdamW: the root, the root scaled, and what needs a cast
        casts = (regime.gradients == 2) + (not regime.master)
        alive = [Storage(tape, max(roots)) for _ in range(2 + casts)]
    elif plan.optimizer_loop == "foreach":  # the roots of all tensors at once
        alive = [Storage(tape, nbytes) for nbytes in roots]
    elif plan.optimizer_loop == "single":  # the root, the root scaled, and the last tensor's, still bound
        alive = [Storage(tape, max(before + 2 * nbytes for before, nbytes in zip([0, *roots], roots)))]
    del alive
