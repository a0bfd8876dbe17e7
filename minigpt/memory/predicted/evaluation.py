"""predict_evaluation(model, plan, samples, batch): what Trainer's evaluation needs between two steps, by arithmetic.

    peak = weights + optimizer state + the larger of
           the set's logits so far + the last batch's + one forward without gradients
           the set's logits + those before the last batch + the last batch's

``Trainer.evaluation_loop`` (transformers 5.17) keeps the logits of the whole set on the device; ``evaluating`` is that
loop on the tape. The batches in between differ in nothing else, and are left out of the events.
``measured.evaluation`` is the same loop on tensors. With a card all batches go through its allocator, between two steps
of a training: each set that a batch was joined to is larger than all free pieces that the smaller ones have left.
"""

from __future__ import annotations

from dataclasses import replace

from minigpt.memory.buckets import StepMemory
from minigpt.memory.collector import at_rest
from minigpt.memory.evaluation import Evaluation
from minigpt.memory.families import Architecture
from minigpt.memory.plan import TrainingPlan
from minigpt.memory.predicted.evaluating import evaluate, evaluated
from minigpt.memory.predicted.reserved import reserve
from minigpt.memory.predicted.run import refuse
from minigpt.memory.predicted.start import start


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
    ``compute_metrics`` Trainer.evaluate asks for the loss only. The one phase is "evaluation". With a card also what
    its allocator counts: reserved from the training's beginning to the step after the evaluation. Raises ValueError for
    what is not allowed, and for what ``predict`` refuses.
    """
    asked = Evaluation(samples, batch, prediction_loss_only, eval_accumulation_steps)
    alone = _alone(Architecture.of(model), plan, asked)
    return alone if plan.card is None else replace(alone, card=reserve(model, plan, asked))


@at_rest()
def _alone(architecture: Architecture, plan: TrainingPlan, asked: Evaluation) -> StepMemory:
    plan = evaluated(plan)
    refuse(architecture, plan)
    began = start(architecture, plan)
    evaluate(began, plan, asked)
    result = began.tape.result(began.frozen())
    del began.tape.keep  # its own method: a cycle
    return result
