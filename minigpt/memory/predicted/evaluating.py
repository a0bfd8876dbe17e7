"""Trainer's evaluation on the tape: forward without gradients, batch by batch, and what is kept of each on the device.

``Trainer.evaluation_loop`` (transformers 5.17) joins each batch's logits and labels to those before by ``torch.cat``,
so old and new are there at once. After ``eval_accumulation_steps`` batches it sends them away, deletes its names for
the last batch and empties the cache.

Left out: what a ``compute_metrics`` makes of the logits, and the copy of 4-bit weights that bitsandbytes makes for some
CPUs' inference.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from minigpt.memory.engine.tape import Value
from minigpt.memory.evaluation import Evaluation
from minigpt.memory.families.losses import returned
from minigpt.memory.plan import TrainingPlan
from minigpt.memory.predicted.start import Start, make_batch

ENDS = 2  # batches that are gone through at either end of a round, where those in between are left out


def evaluated(plan: TrainingPlan) -> TrainingPlan:
    """The plan as a model in eval mode knows it, whose outputs are held. Optimizer and weights are the same."""
    return replace(plan, checkpointing="none", lora_dropout=0.0, holds="outputs", step="steady")


def evaluate(began: Start, plan: TrainingPlan, evaluation: Evaluation, *, every: bool = False) -> None:
    """``every``: all requests, in turn, as an allocator sees them, but for rounds that repeat the second one. Else the
    first round's, without batches that add nothing to its peak.

    Raises ValueError for MiniGPT, and for a plan whose evaluation Trainer does not make.
    """
    evaluation.check(plan)
    if began.architecture.family == "minigpt":
        raise ValueError("the model is MiniGPT; transformers' Trainer evaluates Hugging Face models only")
    first, *rest = evaluation.rounds
    with _eval_mode(began, evaluated(plan)) as asked:
        for sizes in [first, *rest[:1], *rest[1:][-1:]] if every else [first]:
            _round(began, asked, sizes, evaluation.prediction_loss_only, every)
            if len(sizes) == evaluation.eval_accumulation_steps:
                began.tape.emptied.append(len(began.tape.events))


@contextmanager
def _eval_mode(began: Start, plan: TrainingPlan) -> Iterator[TrainingPlan]:
    """``model.eval()`` under ``torch.no_grad()``, of a model that accelerate has prepared; then all is as it was."""
    tape, layers = began.tape, began.layers
    before = layers.plan, layers.wrapped
    layers.plan, layers.wrapped = plan, plan.autocast_dtype is not None
    tape.phase, tape.block, tape.records_nothing, tape.training = "evaluation", "", True, False
    yield plan
    layers.plan, layers.wrapped = before
    layers.positions, tape.records_nothing, tape.training = None, False, True


def _round(began: Start, plan: TrainingPlan, sizes: list[int], loss_only: bool, every: bool) -> None:
    """Batches until all is sent away. As in Trainer's loop, one's own tensors live until the next one's take their
    names."""
    tape = began.tape
    losses: Value | None = None
    predictions: Value | None = None
    labels: Value | None = None
    middle = 0 if every and not loss_only else sum(sizes[ENDS:-ENDS])
    for count, size in enumerate(sizes):
        if middle and ENDS <= count < len(sizes) - ENDS:
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
