"""train(model, plan, documents): some steps of the plan on real text, with random weights; before them one is metered.

    {"memory": what ``measure`` reads, "losses": nats per token of each step, "seconds": of a step, in the middle}

Every step is as the plan says: the libraries' model and adapters, its precision, checkpointing, rows and optimizer, and
a scaler where float16 is computed in. Documents are lists of tokens. A row of sequences "packed" has as many as go into
it, cut at its end, and position ids that begin anew with each; otherwise a row is one document, filled up.

Left out: pretrained weights; updates in backward, which the metered step alone has; and the kernels of Liger and trl,
which a CPU has not: losses that take the head apart are ``minigpt.chunked_loss`` here, with the same gradients.
"""

from __future__ import annotations

import contextlib
import itertools
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from minigpt.chunked_loss import chunked_cross_entropy
from minigpt.memory.measured.building import build
from minigpt.memory.measured.models import base_of, half
from minigpt.memory.measured.optimizers import make_optimizer
from minigpt.memory.measured.step import Batch, autocasts, measure
from minigpt.memory.plan import TrainingPlan
from minigpt.model import IGNORE

CHUNK = 256  # tokens whose logits are there at once


def train(
    model, plan: TrainingPlan, documents: Sequence[Sequence[int]], steps: int, device: str = "cpu", lr: float = 1e-3,
    seed: int = 0, record: str | None = None,
) -> dict:  # fmt: skip
    """Meter one step of ``plan`` as ``measure`` does, then train ``steps`` of them. Raises ValueError as that does."""
    memory = measure(model, plan, device, record)
    torch.manual_seed(seed)
    module = build(model, plan, device)
    optimizer = make_optimizer(module, replace(plan, optimizer_in_backward=False))
    assert isinstance(optimizer, torch.optim.Optimizer)
    for group in optimizer.param_groups:
        group["lr"] = lr
    scaler = torch.amp.GradScaler(device, enabled=half(plan) == torch.float16)
    rows, losses, took = batches(documents, plan, device), [], []
    for _ in range(steps):
        began, total = time.perf_counter(), 0.0
        optimizer.zero_grad()
        for batch in itertools.islice(rows, plan.accumulation):
            with torch.autocast(device, half(plan)) if autocasts(plan) else contextlib.nullcontext():
                loss = _loss(module, batch, plan)
            scaler.scale(loss / plan.accumulation).backward()
            total += loss.item() / plan.accumulation
        scaler.step(optimizer)
        scaler.update()
        losses.append(total)
        took.append(time.perf_counter() - began)
    return {"memory": memory, "losses": losses, "seconds": statistics.median(took)}


def batches(documents: Sequence[Sequence[int]], plan: TrainingPlan, device: str = "cpu") -> Iterator[Batch]:
    """Without end: ``plan.batch`` rows at a time. No token predicts the first one of another document."""
    stream = itertools.cycle(documents)
    while True:
        rows = [_row(stream, plan) for _ in range(plan.batch)]
        tokens, targets, positions = (torch.tensor(part, device=device) for part in zip(*rows))
        if plan.sequences == "packed":
            yield Batch(tokens, targets, position_ids=positions)
        elif plan.sequences == "padded":
            yield Batch(tokens, targets, attention_mask=(positions >= 0).long())
        else:
            yield Batch(tokens, targets)


def _row(stream: Iterator[Sequence[int]], plan: TrainingPlan) -> tuple[list[int], list[int], list[int]]:
    """Tokens, labels and positions of one row; what fills it up has position -1, and no label."""
    tokens: list[int] = []
    labels: list[int] = []
    positions: list[int] = []
    while len(tokens) < plan.seq_len:
        document = list(next(stream)[: plan.seq_len - len(tokens)])
        tokens, labels = [*tokens, *document], [*labels, IGNORE, *document[1:]]
        positions += range(len(document))
        if plan.sequences != "packed":
            empty = plan.seq_len - len(tokens)
            return tokens + [0] * empty, labels + [IGNORE] * empty, positions + [-1] * empty
    return tokens, labels, positions


def _loss(module: nn.Module, batch: Batch, plan: TrainingPlan) -> Tensor:
    inputs = {"attention_mask": batch.attention_mask, "position_ids": batch.position_ids, "use_cache": False}
    if plan.loss in ("model", "shifted"):
        return module(input_ids=batch.tokens, labels=batch.targets, **inputs).loss
    model: Any = base_of(module)
    hidden = model.base_model(input_ids=batch.tokens, **inputs).last_hidden_state
    head = model.get_output_embeddings().weight
    return chunked_cross_entropy(hidden[:, :-1], head, batch.targets[:, 1:], chunk=CHUNK)
