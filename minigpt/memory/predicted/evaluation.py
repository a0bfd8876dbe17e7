"""predict_evaluation(model, plan, samples, batch): what Trainer's evaluation needs between two steps, by arithmetic.

    peak = weights + optimizer state + the larger of
           the set's logits so far + the last batch's + one forward without gradients
           the set's logits + those before the last batch + the last batch's

``Trainer.evaluation_loop`` (transformers 5.17) keeps the logits of the whole set on the device, and joins each batch's
to them by ``torch.cat``, so old and new are there at once. The batches in between differ in nothing else, and are left
out of the events. ``measured.evaluation`` is the same loop on tensors.

Left out: what a ``compute_metrics`` makes of the logits, and the copy of 4-bit weights that bitsandbytes makes for some
CPUs' inference.
"""

from __future__ import annotations

from dataclasses import replace

from minigpt.memory.buckets import StepMemory
from minigpt.memory.collector import at_rest
from minigpt.memory.engine.tape import Value
from minigpt.memory.families import Architecture
from minigpt.memory.families.losses import returned
from minigpt.memory.plan import TrainingPlan, check_evaluation
from minigpt.memory.predicted.run import refuse
from minigpt.memory.predicted.start import Start, make_batch, start

ENDS = 2  # batches that are gone through at either end of the set


def predict_evaluation(
    model,
    plan: TrainingPlan,
    samples: int,
    batch: int = 8,
    *,
    prediction_loss_only: bool = False,
    eval_accumulation_steps: int | None = None,
) -> StepMemory:
    """The memory of evaluating ``samples`` sequences of ``plan.seq_len``, ``batch`` at a time, during a training.

    The last two are Trainer's arguments and have its defaults; ``batch`` is ``per_device_eval_batch_size``. Without
    ``compute_metrics`` Trainer.evaluate asks for the loss only. The one phase is "evaluation". Raises ValueError for
    what is not allowed, and for what ``predict`` refuses.
    """
    check_evaluation(plan, samples, batch, prediction_loss_only, eval_accumulation_steps)
    architecture = Architecture.of(model)
    if architecture.family == "minigpt":
        raise ValueError("the model is MiniGPT; transformers' Trainer evaluates Hugging Face models only")
    sizes = [min(batch, samples - done) for done in range(0, samples, batch)]
    sizes = sizes[:eval_accumulation_steps]  # then everything is sent away, and it begins anew
    plan = replace(plan, checkpointing="none", lora_dropout=0.0, holds="outputs", step="steady")
    refuse(architecture, plan)
    with at_rest():
        return _loop(start(architecture, plan), plan, sizes, prediction_loss_only)


def _loop(began: Start, plan: TrainingPlan, sizes: list[int], loss_only: bool) -> StepMemory:
    """Trainer.evaluation_loop; as there, a batch's own tensors live until the next one's take their names."""
    tape, layers = began.tape, began.layers
    layers.wrapped = plan.autocast_dtype is not None  # accelerate has prepared the model
    tape.phase, tape.records_nothing, tape.training = "evaluation", True, False
    losses: Value | None = None
    predictions: Value | None = None
    labels: Value | None = None
    middle = sum(sizes[ENDS:-ENDS])
    for count, size in enumerate(sizes):
        if ENDS <= count < len(sizes) - ENDS:
            continue
        if middle and count == len(sizes) - ENDS:
            losses, predictions, labels = (more(joined, middle) for joined in (losses, predictions, labels))
        inputs = make_batch(tape, replace(plan, batch=size))
        loss, logits = _predict(began, plan, inputs)
        losses = more(losses, size, tape.new((size,), "float32"))
        if not loss_only:
            predictions = more(predictions, size, logits)
            labels = more(labels, size, inputs[1])
        else:
            del logits
    result = tape.result(began.frozen())
    del tape.keep  # its own method: a cycle
    return result


def _predict(began: Start, plan: TrainingPlan, inputs: list[Value]) -> tuple[Value, Value]:
    """Trainer.prediction_step: the loss and the logits."""
    architecture, tape, layers, *_ = began
    tokens, targets, *given = inputs
    layers.positions = given[0] if plan.sequences == "packed" else None
    tape.autocast = plan.autocast_dtype
    loss = architecture.loss(layers, tokens, targets)
    tape.casts.clear()
    tape.block, tape.doing = "", "float32 logits"
    returned(layers)
    outputs, layers.outputs = layers.outputs, []
    mean = tape.new((), loss.dtype)
    return mean, outputs[-1]


def more(joined: Value | None, size: int, new: Value | None = None) -> Value | None:
    """EvalLoopContainer.add: what has come so far, joined to ``size`` rows more by a copy of both."""
    if joined is None:
        return new
    rows, *shape = joined.shape
    joined.storage.tape.doing = "the set so far"
    return joined.storage.tape.new((rows + size, *shape), joined.dtype)
