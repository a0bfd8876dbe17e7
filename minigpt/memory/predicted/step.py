"""predict(model, plan): every bucket of a training step, by arithmetic.

The persistent buckets are products: parameters times bytes a parameter (``PRECISIONS``). Activations and
the peak come from running the step on sizes (``engine``, ``families``): the steady state, when the
optimizer's state is there before the step begins.

    peak = max over instants of (weights + gradients so far + optimizer state + what is saved + what is in use)

and its three usual instants are the backward of the log-softmax, a block's backward, and the optimizer's step.

With ``plan.card`` the kernels are CUDA's: what they ask for beside their results is there (``predicted.cuda``), softmax
and LayerNorm are as CUDA has them, and its autocast leaves them in float32. The buckets stay bytes of tensors; whole
blocks, and what is reserved for them, are ``predicted.reserved``.

Left out: the CUDA context, cuDNN's workspace, and the few kilobytes that position bookkeeping allocates.
Pure Python: this imports no torch.
"""

from __future__ import annotations

from dataclasses import replace

from minigpt.memory.buckets import StepMemory
from minigpt.memory.engine.tape import Tape
from minigpt.memory.plan import TrainingPlan
from minigpt.memory.predicted.reserved import reserve
from minigpt.memory.predicted.run import run


def predict(model, plan: TrainingPlan, *, history: bool = True) -> StepMemory:
    """The memory of one training step of ``model`` (anything ``Architecture.of`` reads) under ``plan``.

    With a card also what its allocator counts from the training's beginning on; without ``history`` the step alone,
    which is made once and not three times. Raises ValueError, naming the field, for what is not covered.
    """
    step = run(model, plan, Tape.result)
    if plan.card is None or not history:
        return step
    return replace(step, card=reserve(model, plan))
