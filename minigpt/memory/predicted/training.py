"""A training on one tape, on a card: the model is loaded, then steps, each of any length, and evaluations in between.

A batch stays until one of another length is made. What a step returned dies when it ends; its gradients, with
``zero_grad`` before forward, when the next one begins, or an evaluation.
"""

from __future__ import annotations

from dataclasses import replace

from minigpt.memory.collector import at_rest
from minigpt.memory.engine.tape import Tape, Value
from minigpt.memory.evaluation import Evaluation
from minigpt.memory.plan import TrainingPlan
from minigpt.memory.predicted.evaluating import evaluate
from minigpt.memory.predicted.run import one_step, refuse
from minigpt.memory.predicted.start import make_batch, start
from minigpt.memory.room import check_fit


class Training:
    """Loading, at once; raises ValueError without a card, and as ``predict`` does. ``steps``: how many have been."""

    @at_rest()
    def __init__(self, model, plan: TrainingPlan) -> None:
        if plan.card is None:
            raise ValueError("card is None; what is reserved depends on it")
        self.first = plan if plan.step == "resumed" else replace(plan, step="first")
        self.plan, self.steps = replace(plan, step="steady") if plan.step == "first" else plan, 0
        self._began = start(model, self.first, cold=True)
        refuse(self._began.architecture, plan)
        del self.tape.keep  # its own method: a cycle
        self._batch: list[Value] = []

    @property
    def tape(self) -> Tape:
        return self._began.tape

    @at_rest()
    def step(self, seq_len: int | None = None) -> None:
        """One step of ``seq_len`` tokens per sequence (None: the plan's). Raises ValueError for too many."""
        plan = self.plan if self.steps else self.first
        if seq_len is not None:
            plan = replace(plan, seq_len=seq_len)
            check_fit(self._began.architecture, plan)
        tape = self.tape
        tape.phase, tape.keep = "forward", tape.keep_saved
        if plan.zero_grad == "before_forward":
            self._zero_grad()
        if not self._batch or self._batch[0].shape != (plan.batch, plan.seq_len):
            self._batch = []
            self._batch = make_batch(tape, plan)
        self._began.optimizer.plan = plan
        kept = one_step(self._began, plan, self._batch)
        del kept, tape.keep  # the function that makes a step returns
        self.steps += 1

    @at_rest()
    def evaluate(self, evaluation: Evaluation) -> None:
        """As Trainer does between two steps, whatever ``zero_grad`` says: it has called ``model.zero_grad()`` before.

        Raises ValueError for MiniGPT, and for a plan whose evaluation Trainer does not make.
        """
        self._zero_grad()
        evaluate(self._began, self.plan, evaluation, every=True)

    def _zero_grad(self) -> None:
        for value in self._began.layers.trained:
            value.source.gradient = None
