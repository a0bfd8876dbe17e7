"""predict_static(model, plan): what stays from step to step: weights, gradients and the optimizer's state.

No step is run, so it also covers bases whose kernels ``predict`` does not follow, by size only: GPTQ and AWQ as their
checkpoints hold them, in 4 bits and groups of 128.

Left out there: what a kernel makes of a loaded checkpoint, such as Marlin's workspace.
"""

from __future__ import annotations

from dataclasses import replace

from minigpt.memory.buckets import Ledger
from minigpt.memory.collector import at_rest
from minigpt.memory.engine.layers import GROUP
from minigpt.memory.engine.tape import ITEMSIZE
from minigpt.memory.families import Architecture
from minigpt.memory.plan import TrainingPlan
from minigpt.memory.predicted.start import start

PACKED = 8  # 4-bit numbers in an int32: along the outputs for zeros and for AWQ's weights


def predict_static(model, plan: TrainingPlan) -> Ledger:
    """The three buckets that stay, with the gradients of all trained parameters at once; the others are 0.

    Raises ValueError for what is not covered, naming the field, and for matrices that GPTQ and AWQ cannot hold.
    """
    architecture = Architecture.of(model)
    if plan.sharding != "none":
        raise ValueError(f"sharding is {plan.sharding!r}; what stays on a rank is in the ledger of predict")
    if plan.method == "qlora" and plan.quantization in ("gptq", "awq"):
        _check_groups(architecture, plan)
    with at_rest():
        began = start(architecture, replace(plan, step="steady"))
        ledger = began.tape.result().ledger
        trained = began.layers.trained
    if plan.regime.float32_update:
        gradients = plan.regime.gradients * sum(value.numel for value in trained)
    else:
        gradients = sum(value.numel * ITEMSIZE[value.gradient_dtype or value.dtype] for value in trained)
    del began.tape.keep  # its own method: a cycle
    return Ledger(weights=ledger.weights, gradients=gradients, optimizer=ledger.optimizer)


def _check_groups(architecture: Architecture, plan: TrainingPlan) -> None:
    """Raise ValueError for a model that has no checkpoint of this kind."""
    what = f"quantization is {plan.quantization!r}"
    if architecture.family == "minigpt":
        raise ValueError(f"{what}; MiniGPT has 'nf4' only")
    if plan.variant == "dora":
        raise ValueError(f"variant is 'dora'; with quantization {plan.quantization!r} peft has none")
    tensors = architecture.tensors()
    if any(tensor.kind == "experts" for tensor in tensors):
        raise ValueError(f"{what}; a mixture's experts are not covered by it")
    for tensor in tensors:
        if tensor.kind == "linear" and (tensor.shape[0] % PACKED or tensor.shape[1] % GROUP):
            text = f"outputs by {PACKED} and inputs by {GROUP}, unlike {tensor.name} {tensor.shape}"
            raise ValueError(f"{what}; it packs {text}")
