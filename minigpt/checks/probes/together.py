"""The three tools of a student's in one step of a MiniGPT: micro-batches, checkpoints, a loss in chunks.

    gradients(tools, model, tokens, targets, way)      the loss, and .grad of each parameter
    keeps(tools, model, tokens, targets, way)          bytes saved for backward, and bytes made, each at most at a time

``tools``: (accumulate, Checkpoint, Chunked). ``way``: (rows, whether blocks are checkpointed, tokens in a chunk, or 0).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from minigpt.checks.closing import by_hand
from minigpt.checks.probes import probe
from minigpt.checks.probes.watching import Watch
from minigpt.model import GPT, cross_entropy

Way = tuple[int, bool, int]


class Step(nn.Module):
    """As the lab's: a GPT's mean loss, with these checkpoints, if ``again``, and in chunks of so many tokens."""

    def __init__(self, model: GPT, checkpoint: Any, chunked: Any, again: bool, chunk: int) -> None:
        super().__init__()
        self.model, self.again, self.chunk = model, again, chunk
        self.checkpoint, self.chunked = checkpoint, chunked

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        model, positions = self.model, torch.arange(tokens.size(1), device=tokens.device)
        x = model.token_embedding(tokens) + model.position_embedding(positions)  # (B, T, C)
        for block in model.blocks:
            x = self.checkpoint.apply(block, x, *block.parameters()) if self.again else block(x)
        if self.chunk:
            return self.chunked.apply(model.norm(x).flatten(0, 1), model.lm_head.weight, targets.flatten(), self.chunk)
        return cross_entropy(model.lm_head(model.norm(x)), targets)


@probe
def gradients(tools: tuple, model: GPT, tokens: Tensor, targets: Tensor, way: Way) -> dict:
    loss = _taken(tools, model, tokens, targets, way)
    return {"loss": loss, "gradients": {name: p.grad for name, p in model.named_parameters() if p.grad is not None}}


@probe
def keeps(tools: tuple, model: GPT, tokens: Tensor, targets: Tensor, way: Way) -> dict:
    with Watch(model.parameters(), (tokens, targets)) as watch:
        _taken(tools, model, tokens, targets, way)
    return {"kept": watch.kept, "peak": watch.peak}


def _taken(tools: tuple, model: GPT, tokens: Tensor, targets: Tensor, way: Way):
    (accumulate, checkpoint, chunked), (rows, again, chunk) = tools, way
    step = Step(model, checkpoint, chunked, again, chunk)
    return by_hand(accumulate, step, tokens, targets, rows, building=True, twice=False, untouched=False, none_ok=True)
