"""A training on one tape, on a card: the model is loaded, then step after step, each of any length.

A batch stays until one of another length is made. What a step returned dies when it ends; its gradients, with
``zero_grad`` before forward, when the next one begins.
"""

from __future__ import annotations

from dataclasses import replace

from minigpt.memory.collector import at_rest
from minigpt.memory.engine.tape import Tape, Value
from minigpt.memory.plan import TrainingPlan
from minigpt.memory.predicted.run import one_step, refuse
from minigpt.memory.predicted.start import make_batch, start
from minigpt.memory.room import check_fit


class Training:
    """Loading, at once; raises ValueError without a card, and as ``predict`` does. ``steps``: how many have been."""

    @at_rest()
    def __init__(self, model, plan: TrainingPlan) -> None:
        if plan.card is None:
            raise ValueError("card is None; what is reserved depends on it")
        self.plan, self.steps = plan, 0
        self.first = plan if plan.step == "resumed" else replace(plan, step="first")
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
        tape, layers = self.tape, self._began.layers
        tape.phase, tape.keep = "forward", tape.keep_saved
        if plan.zero_grad == "before_forward":
            for value in layers.trained:
                value.source.gradient = None
        if not self._batch or self._batch[0].shape != (plan.batch, plan.seq_len):
            self._batch = []
            self._batch = make_batch(tape, plan)
        self._began.optimizer.plan = plan
        kept = one_step(self._began, plan, self._batch)
        del kept, tape.keep  # the function that makes a step returns
        self.steps += 1
