"""What is chosen, and what comes of it: a plan, its step and the verdict, or the sentence that refuses it.

A recipe is a library's defaults (``recipes``), or "textbook": a plain loop with everything in bfloat16, adapters on all
matrices. ``OWN`` leaves checkpointing or the optimizer as the recipe has it.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from typing import Any

from minigpt.memory.buckets import StepMemory
from minigpt.memory.families.architecture import Architecture
from minigpt.memory.fits import Verdict, judge
from minigpt.memory.gpus import GPUS, find_gpu
from minigpt.memory.names import left_out
from minigpt.memory.plan import ALLOWED, OPTIM, TrainingPlan
from minigpt.memory.predicted.step import predict
from minigpt.memory.recipes import APART, RECIPES
from minigpt.values import check_choice, check_counts

OWN = "the recipe's own"
TEXTBOOK = "textbook"
LIKE = (TEXTBOOK, *RECIPES)
CHECKPOINTING = (OWN, *ALLOWED["checkpointing"])
OPTIMIZERS = (OWN, *ALLOWED["optimizer"])
OFTEN = ("batch", "seq_len", "method", "checkpointing", "optimizer", "card")  # the plan's words that have a slider


@dataclass(frozen=True)
class Choice:
    """Where the sliders stand. ``more`` holds other words of the plan, which stay as they are.

    ``optimizer`` may have the name that transformers gives it: ``paged_adamw_8bit`` is ``paged_adamw8bit``.

    Raises ValueError for a value that no slider has; whether all of them go together is ``Answer``'s to say.
    """

    model: str = "llama-3-8b"
    method: str = "lora"
    like: str = "hf-trainer"
    batch: int = 1
    seq_len: int = 1024
    checkpointing: str = OWN
    optimizer: str = OWN
    card: str = "RTX 4090"
    more: dict[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        check_choice(ALLOWED["method"], method=self.method)
        check_choice(LIKE, like=self.like)
        check_choice(CHECKPOINTING, checkpointing=self.checkpointing)
        spelled = OPTIM.get(self.optimizer, {})
        if spelled.keys() == {"optimizer"}:
            object.__setattr__(self, "optimizer", spelled["optimizer"])
        check_choice(OPTIMIZERS, optimizer=self.optimizer)
        check_counts(batch=self.batch, seq_len=self.seq_len)
        object.__setattr__(self, "card", find_gpu(self.card))
        allowed = [name for name in TrainingPlan.__dataclass_fields__ if name not in OFTEN]
        for name in self.more:
            if name not in allowed:
                raise ValueError(f"{name} is no word of the plan; allowed: {', '.join(allowed)}")

    def fields(self) -> dict[str, Any]:
        """The plan's words that the choice sets, beside its recipe's."""
        given: dict[str, Any] = dict(method=self.method, batch=self.batch, seq_len=self.seq_len)
        if self.like == TEXTBOOK:
            given["precision"] = "bf16"
        if self.checkpointing != OWN:
            given["checkpointing"] = self.checkpointing
        if self.like == "script" and self.checkpointing not in (OWN, "none"):
            given["use_cache"] = False  # transformers turns the cache off itself
        if self.optimizer != OWN:
            given["optimizer"] = self.optimizer
        return {**given, **self.more, "card": self.card}

    def plan(self) -> TrainingPlan:
        """Raises ValueError for words that do not go together."""
        given = self.fields()
        return TrainingPlan(**given) if self.like == TEXTBOOK else TrainingPlan.like(self.like, **given)

    @property
    def command(self) -> str:
        """What to type in a shell for the same figures, and for what would make it fit."""
        words = ["python", "-m", "minigpt.memory", self.model]
        words += [] if self.like == TEXTBOOK else ["--like", self.like]
        for name, value in self.fields().items():
            option = name.replace("_", "-")
            if isinstance(value, bool):
                words.append(f"--{option}" if value else f"--no-{option}")
            else:
                words += [f"--{option}", str(value)]
        return shlex.join(words)


@dataclass(frozen=True)
class Answer:
    """What comes of a choice: ``plan``, ``step``, ``verdict`` and ``notes``; or a ``refusal``, one sentence."""

    choice: Choice
    plan: TrainingPlan | None = None
    step: StepMemory | None = None
    verdict: Verdict | None = None
    notes: tuple[str, ...] = ()
    refusal: str = ""

    @classmethod
    def to(cls, choice: Choice) -> Answer:
        """Asks ``predict``; what it refuses with a ValueError is a ``refusal``."""
        try:
            plan, architecture = choice.plan(), Architecture.of(choice.model)
            step = predict(architecture, plan)
            verdict = judge(step, plan, architecture)
        except ValueError as error:
            return cls(choice, refusal=str(error))
        dropout = left_out(choice.model)
        notes = (*([dropout] if dropout else []), *APART.get(choice.like, ()))
        return cls(choice, plan, step, verdict, notes)

    @property
    def room(self) -> tuple[int, int]:
        """Bytes that the card holds, and those of them that tensors may take."""
        assert self.verdict is not None
        return GPUS[self.choice.card].vram, self.verdict.room

    @property
    def frozen(self) -> int:
        """Bytes of weights that are frozen by the method; a full model's few buffers are not meant."""
        assert self.step is not None
        return 0 if self.choice.method == "full" else self.step.frozen
