"""An evaluation between two training steps, in the words of transformers' Trainer: what is predicted and measured.

``Trainer.evaluation_loop`` (transformers 5.17) keeps the logits of the whole set on the device, unless it has been told
otherwise by one of its two arguments that are here.
"""

from __future__ import annotations

from dataclasses import dataclass

from minigpt.memory.plan import TrainingPlan
from minigpt.values import check_counts, check_flags


@dataclass(frozen=True)
class Evaluation:
    """``samples`` sequences, ``batch`` at a time (per_device_eval_batch_size), with Trainer's own defaults.

    ``prediction_loss_only``: the logits of a batch go when the next one's are there. ``eval_accumulation_steps``: after
    so many batches all that was kept is sent away, and the cache is emptied. Raises ValueError for what is not allowed.
    """

    samples: int
    batch: int = 8
    prediction_loss_only: bool = False
    eval_accumulation_steps: int | None = None

    def __post_init__(self) -> None:
        check_counts(samples=self.samples, batch=self.batch)
        check_flags(prediction_loss_only=self.prediction_loss_only)
        if self.eval_accumulation_steps is not None:
            check_counts(eval_accumulation_steps=self.eval_accumulation_steps)

    def check(self, plan: TrainingPlan) -> None:
        """Raise ValueError for a training whose evaluation Trainer does not make, or that is not followed."""
        if plan.sharding != "none":
            raise ValueError(f"sharding is {plan.sharding!r}; an evaluation is one rank's alone: allowed with it: none")
        if plan.loss != "model" or plan.logits_to_keep:
            name, right = ("logits_to_keep", 0) if plan.loss == "model" else ("loss", "model")
            raise ValueError(f"{name} is {getattr(plan, name)!r}; in Trainer's evaluation it must be {right!r}")

    @property
    def rounds(self) -> list[list[int]]:
        """The sizes of the batches, those of a list until all that was kept is sent away."""
        sizes = [min(self.batch, self.samples - done) for done in range(0, self.samples, self.batch)]
        each = self.eval_accumulation_steps or len(sizes)
        return [sizes[at : at + each] for at in range(0, len(sizes), each)]
