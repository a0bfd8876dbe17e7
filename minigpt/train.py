"""One training loop for every method: full fine-tuning, adapters, quantized bases.

A step takes ``accumulation`` micro-batches and makes one update. The loss of a step is the mean over all target tokens
of all its micro-batches,

    loss = sum_i n_i * loss_i / sum_i n_i        n_i target tokens and mean loss_i in micro-batch i

so that accumulation equals the big batch even when answers differ in length. (The mean of the loss_i does not: many
libraries had this wrong until 2024.) Only parameters with ``requires_grad`` are trained.

A run can be saved on the way and go on later (``minigpt.resume``). Batch number i depends on the seed and i alone (see
``minigpt.data``), so a resumed run sees the same batches and gives the same losses.

Left out: several devices, weight decay groups, early stopping.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from tqdm import tqdm

from minigpt.data import Batch
from minigpt.model import IGNORE
from minigpt.optim import adamw
from minigpt.precision import autocast, check_precision, weight_dtype
from minigpt.resume import load_checkpoint, save_checkpoint
from minigpt.values import check_choice, check_counts, is_number

# Numbers under 1e-38 cost a CPU up to a hundred times more than others: take them as 0. This is set on import, since a
# worker thread keeps what held when it was born, and the first large operation gives birth to all of them.
torch.set_flush_denormal(True)

SCHEDULES = ("cosine", "constant")
NAMED = 3  # parameters that an error names
SMALLEST_SHARE = 0.1  # of the learning rate, where the cosine ends


@dataclass(frozen=True, kw_only=True)
class TrainPlan:
    """How to train. Raises ValueError for a value that is not allowed."""

    steps: int  # optimizer updates
    lr: float = 1e-3  # largest learning rate
    schedule: str = "cosine"  # "cosine" falls to a tenth of lr; "constant" does not fall
    warmup: int = 0  # steps of linear rise from 0 before the schedule starts
    accumulation: int = 1  # micro-batches in a step
    clip: float | None = 1.0  # largest norm of the gradient; None leaves it alone
    weight_decay: float = 0.0
    precision: str = "fp32"  # one of minigpt.memory.plan.PRECISIONS
    eval_every: int = 0  # steps between evaluations; 0: only before the first and after the last
    checkpoint_every: int = 0  # steps between checkpoints; 0: only after the last
    seed: int = 0  # of what is random inside the model, such as dropout

    def __post_init__(self) -> None:
        check_counts(steps=self.steps, accumulation=self.accumulation)
        for name in ("warmup", "eval_every", "checkpoint_every", "seed"):
            check_counts(least=0, **{name: getattr(self, name)})
        for name in ("lr", "weight_decay"):
            if not is_number(getattr(self, name)) or not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} is {getattr(self, name)!r}; it must be a number of at least 0")
        if self.clip is not None and (not is_number(self.clip) or not self.clip > 0):
            raise ValueError(f"clip is {self.clip!r}; it must be above 0, or None")
        check_choice(SCHEDULES, schedule=self.schedule)
        if self.warmup >= self.steps:
            raise ValueError(f"warmup is {self.warmup}; it must be less than steps, which is {self.steps}")
        check_precision(self.precision)
        if self.precision == "fp16":
            raise ValueError("precision is 'fp16', in which gradients vanish and moments overflow; take fp16-autocast")

    def learning_rate(self, step: int) -> float:
        """The learning rate of step 0, 1, ... steps - 1."""
        if step < self.warmup:
            return self.lr * (step + 1) / (self.warmup + 1)
        if self.schedule == "constant":
            return self.lr
        done = (step - self.warmup) / (self.steps - self.warmup)
        return self.lr * (SMALLEST_SHARE + (1 - SMALLEST_SHARE) * (1 + math.cos(math.pi * done)) / 2)


@dataclass
class History:
    """What happened, step by step. Losses are means over target tokens, in nats."""

    losses: list[float] = field(default_factory=list)
    learning_rates: list[float] = field(default_factory=list)
    gradient_norms: list[float] = field(default_factory=list)  # before clipping; empty where clip is None
    validation: list[tuple[int, float]] = field(default_factory=list)  # (steps done, loss), the first before training
    tokens: int = 0  # that went through the model in training, padding included
    seconds: float = 0.0  # of training, evaluation and checkpoints left out

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0


def train(
    model: nn.Module,
    batches: Any,
    plan: TrainPlan,
    *,
    validation: Iterable[Batch] | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    checkpoint: str | os.PathLike | None = None,
    resume: bool = False,
    progress: bool = True,
    on_step: Callable[[int, History], None] | None = None,
) -> History:
    """Train ``model`` in place, where it is. ``model(tokens, targets)`` must return the mean loss.

    ``batches[i]`` gives (tokens, targets), each (B, T). ``validation`` is a finite set of such batches.
    ``optimizer`` replaces the plan's AdamW; its learning rate still follows the plan. ``on_step(steps_done, history)``
    is called after each step. With ``checkpoint``, a file is written; with ``resume``, training goes on from it.
    Raises ValueError if nothing is trainable, weights have another dtype than the precision says, a batch has no
    target, a trained parameter gets no gradient in the first step, a step's loss is NaN or infinite, or the checkpoint
    is missing or belongs to another plan or model.
    """
    parameters = trainable(model, plan.precision)
    device = next(model.parameters()).device
    optimizer = optimizer or adamw(parameters, plan.precision, lr=plan.lr, weight_decay=plan.weight_decay)
    scaler = torch.amp.GradScaler(device.type, enabled=plan.precision == "fp16-autocast")  # fp16 gradients underflow
    torch.manual_seed(plan.seed)
    history = History(**load_checkpoint(checkpoint, model, optimizer, scaler, plan)) if resume else History()
    first = len(history.losses)
    if validation is not None and not history.validation:
        history.validation.append((0, evaluate(model, validation, plan.precision)))

    model.train()
    optimizer.zero_grad()  # what an earlier run left, such as one that failed, is no part of this one
    bar = tqdm(range(first, plan.steps), initial=first, total=plan.steps, unit="step", disable=not progress)
    for step in bar:
        started = time.perf_counter()
        lr = plan.learning_rate(step)
        for group in optimizer.param_groups:
            group["lr"] = lr

        window = [_batch(batches, step * plan.accumulation + i, plan, device) for i in range(plan.accumulation)]
        counts = [count_targets(targets) for _, targets in window]
        loss = 0.0
        for (tokens, targets), count in zip(window, counts):
            with autocast(plan.precision, device):
                part = model(tokens, targets) * (count / sum(counts))  # a scalar
            if not part.requires_grad:
                check_reached(model)
            scaler.scale(part).backward()
            loss += part.item()
        if step == first:
            check_reached(model)
        if not math.isfinite(loss):  # whatever is learned from here on is lost
            raise ValueError(f"the loss is {loss} at step {step + 1}; a smaller lr or a longer warmup may help")

        if plan.clip is not None:
            scaler.unscale_(optimizer)
            history.gradient_norms.append(nn.utils.clip_grad_norm_(parameters, plan.clip).item())
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

        history.losses.append(loss)
        history.learning_rates.append(lr)
        history.tokens += sum(tokens.numel() for tokens, _ in window)
        history.seconds += time.perf_counter() - started
        bar.set_postfix(loss=f"{loss:.3f}", refresh=False)
        done = step + 1
        if validation is not None and (done == plan.steps or plan.eval_every and done % plan.eval_every == 0):
            history.validation.append((done, evaluate(model, validation, plan.precision)))
        if on_step is not None:
            on_step(done, history)
        if checkpoint and (done == plan.steps or plan.checkpoint_every and done % plan.checkpoint_every == 0):
            save_checkpoint(checkpoint, model, optimizer, scaler, plan, history)
    return history


@torch.no_grad()
def evaluate(model: nn.Module, batches: Iterable[Batch], precision: str = "fp32") -> float:
    """The mean loss over all target tokens of ``batches``, in nats; the model is left in the mode it was in."""
    device, was_training = next(model.parameters(), torch.empty(0)).device, model.training
    model.eval()
    total, count = 0.0, 0
    for batch in batches:
        tokens, targets = _to(batch, device)
        n = count_targets(targets)
        with autocast(precision, device):
            total += model(tokens, targets).item() * n
        count += n
    model.train(was_training)
    if not count:
        raise ValueError("the validation set has no batch")
    return total / count


def bits_per_byte(nats: float) -> float:
    """A loss in nats per token as bits per byte: the course's tokens are bytes."""
    return nats / math.log(2)


def trainable(model: nn.Module, precision: str) -> list[Tensor]:
    """The parameters that take a gradient. Raises ValueError if there is none, or one has the wrong dtype."""
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    if not named:
        raise ValueError("the model has no parameter with requires_grad; there is nothing to train")
    wanted = weight_dtype(precision)
    for name, p in named:
        if p.dtype != wanted:
            raise ValueError(
                f"precision is {precision!r}, which trains {wanted} weights, but {name} is {p.dtype}; "
                f"call model.to({wanted}) or take another precision"
            )
    return [p for _, p in named]


def check_reached(model: nn.Module) -> None:
    """Raise ValueError, naming some, if there are trained parameters without a gradient: none would ever learn.

    A reentrant checkpoint records nothing inside it unless an input takes a gradient. A frozen embedding's output does
    not, so the adapters of every block from there to the first one without a checkpoint are cut off.
    """
    trained = [(name, p.grad is None) for name, p in model.named_parameters() if p.requires_grad]
    missing = [name for name, none in trained if none]
    if missing:
        some = ", ".join(missing[:NAMED]) + (f" and {len(missing) - NAMED} more" if len(missing) > NAMED else "")
        raise ValueError(
            f"{len(missing)} of {len(trained)} trained parameters get no gradient: {some}; the loss does not depend on "
            "them, or a checkpoint with use_reentrant=True over frozen inputs hides them: use_reentrant=False does not"
        )


def count_targets(targets: Tensor) -> int:
    """Targets that add to the loss. Raises ValueError if there is none: the mean loss would be 0 / 0."""
    count = int((targets != IGNORE).sum())
    if not count:
        raise ValueError(f"a batch of shape {tuple(targets.shape)} has no target token: all are {IGNORE}")
    return count


def _batch(batches: Any, i: int, plan: TrainPlan, device: torch.device) -> Batch:
    try:
        return _to(batches[i], device)
    except IndexError:
        needed = f"{plan.steps} steps need {plan.steps * plan.accumulation} micro-batches"
        raise ValueError(f"batches ended at number {i}; {needed}") from None


def _to(batch: Batch, device: torch.device) -> Batch:
    tokens, targets = batch
    return tokens.to(device), targets.to(device)
