"""A training step on the tape: its forward passes, their backwards, the optimizer, from a model and a plan.

``predict`` (``step``) says what comes of it in bytes; ``reserved`` runs several, from loading on. No torch is imported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from minigpt.memory.collector import at_rest
from minigpt.memory.engine.layers import Layers
from minigpt.memory.engine.tape import GRADIENTS, Tape, Value
from minigpt.memory.families import Architecture
from minigpt.memory.families.losses import returned
from minigpt.memory.plan import TrainingPlan
from minigpt.memory.predicted.optimizer import hook
from minigpt.memory.predicted.start import Start, make_batch, start
from minigpt.memory.predicted.static import predict_static
from minigpt.memory.units import readable

Result = TypeVar("Result")


@at_rest()
def run(
    model,
    plan: TrainingPlan,
    finish: Callable[[Any, int], Result],
    kind: type[Tape] = Tape,
    rank: int = 0,
    seen: Callable[[Start], None] = lambda began: None,
) -> Result:
    """What ``finish(tape, bytes of frozen weights)`` makes of the step, while all that outlives it is still alive.

    ``kind``: the class of the tape, for one that notes more. ``rank``: whose step it is. ``seen``: told what is there
    when the step has ended.
    """
    began = start(model, plan, kind, rank=rank)
    refuse(began.architecture, plan)
    tape, layers = began.tape, began.layers
    if not plan.optimizer_in_backward and plan.zero_grad != "before_forward" and plan.step in ("steady", "refresh"):
        _old_gradients(layers)
    batch = make_batch(tape, plan)
    kept = one_step(began, plan, batch)
    result = finish(tape, began.frozen())
    seen(began)
    del tape.keep  # its own method: a cycle
    del kept, batch, began
    return result


def one_step(began: Start, plan: TrainingPlan, batch: list[Value]) -> tuple:
    """A step on ``batch`` (``make_batch``). Returns what stays bound when it ends: the loss, and what was returned."""
    architecture, tape, layers, optimizer, *_ = began
    tokens, targets, *given = batch
    if plan.optimizer_in_backward:
        tape.hook = hook(optimizer)
    layers.positions = given[0] if plan.sequences == "packed" else None
    loss = outputs = None
    for i in range(plan.accumulation):
        tape.phase, tape.autocast = "forward", plan.autocast_dtype
        layers.ranks.forward_begins()
        loss = layers.ranks.forward_ends(architecture.loss(layers, tokens, targets))
        tape.casts.clear()  # autocast forgets its cache when its block ends
        returned(layers)
        outputs = [*layers.outputs, layers.embedded, *tape.contexts]  # what the last pass returned dies here
        layers.outputs, layers.embedded, tape.contexts = [], None, []
        tape.phase = "backward"
        if plan.zero_grad == "before_backward" and i == 0:
            for value in layers.trained:
                value.source.gradient = None
        tape.backward(loss)
        layers.ranks.backward_ends()
    tape.phase, tape.block = "step", ""
    layers.ranks.step_begins()
    if not plan.optimizer_in_backward:
        optimizer.update(layers.trained)
    layers.ranks.step_ends()
    return loss, outputs


def _old_gradients(layers: Layers) -> None:
    """The last step's gradients, which zero_grad has not freed."""
    for value in layers.trained:
        value.source.gradient = layers.tape.new(value.shape, value.gradient_dtype or value.dtype, bucket=GRADIENTS)


def refuse(architecture: Architecture, plan: TrainingPlan) -> None:
    """Raise ValueError for what the tape does not know, naming the field."""
    if plan.checkpointing == "sqrt" and not architecture.in_a_row:
        text = f"a {architecture.family}'s blocks differ, or return more than a tensor, and cannot run in a row"
        raise ValueError(f"checkpointing is 'sqrt'; {text}")
    if plan.method != "qlora":
        return
    if plan.step == "first" and any(t.kind == "bias" and "norm" not in t.name for t in architecture.block_tensors()):
        raise ValueError("step is 'first', in which quantized layers cast their biases: allowed here: steady, resumed")
    if plan.quantization == "nf4":
        return
    if plan.quantization in ("gptq", "awq"):
        stays = readable(predict_static(architecture, plan).total)
        text = f"whose kernels are not followed: predicted: nf4, int8; what stays from step to step is {stays}"
        raise ValueError(f"quantization is {plan.quantization!r}, {text}")
    if plan.card:
        raise ValueError(f"card is {plan.card!r}; LLM.int8 is followed as it runs on a CPU: with int8 it must be None")
    if plan.variant == "dora":
        raise ValueError("variant is 'dora'; with quantization 'int8' allowed: lora, rslora")
