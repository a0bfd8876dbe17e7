"""Judging the three tools of lab 05 in one step: the same gradients as a plain one, and what it keeps as in a formula.

alike(accumulate, Checkpoint, Chunked, (model, tokens, targets))
ledger(minigpt_block, accumulate, Checkpoint, Chunked, case)
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from minigpt.checks import training
from minigpt.checks.activations import asking  # noqa: F401  closes the book
from minigpt.checks.activations.again import STATE
from minigpt.checks.closing import by_hand, knows
from minigpt.checks.comparing import whole
from minigpt.checks.probes import together
from minigpt.checks.verdict import Wrong
from minigpt.model import GPT, GPTConfig

knows(__name__)
SCALARS = 256  # bytes: what the losses are weighed with is saved, where it is a tensor


class Case(NamedTuple):
    """A MiniGPT, a batch of sequences, how many make a micro-batch, and tokens in a chunk."""

    config: GPTConfig
    batch: int
    seq_len: int
    rows: int
    chunk: int

    @property
    def ways(self) -> dict[str, together.Way]:
        return {
            "plain": (self.batch, False, 0), "accumulated": (self.rows, False, 0),
            "checkpointed": (self.batch, True, 0), "in chunks": (self.batch, False, self.chunk),
            "all three": (self.rows, True, self.chunk),
        }  # fmt: skip


def alike(accumulate: Callable, checkpoint: Any, chunked: Any, case: tuple[GPT, Tensor, Tensor]) -> None:
    model, tokens, targets = case
    tools = accumulate, checkpoint, chunked
    said = {name: together.gradients(tools, copy.deepcopy(model), tokens, targets, way)
            for name, way in (("plain", (len(tokens), False, 0)), ("thrifty", (3, True, 100)))}  # fmt: skip
    truth = training.gradients_of(model, tokens, targets)
    right = torch.cat([gradient.flatten() for gradient in truth.values()])
    for name, told in said.items():
        missing = [each for each in truth if each not in told["gradients"]]
        if missing:
            raise Wrong("no-gradients", f"the {name} step: there is no gradient of {missing[0]}")
        mine = torch.cat([told["gradients"][each].flatten() for each in truth])
        apart = ((mine - right).norm() / right.norm()).item()
        if not apart < 1e-3:
            raise Wrong(f"{name}-gradients", f"the gradients of the {name} step are {apart:.1e} of their norm apart "
                                             "from those of the plain model, and rounding makes 1e-6")  # fmt: skip


def ledger(block_bytes: Callable, accumulate: Callable, checkpoint: Any, chunked: Any, case: Case) -> None:
    """Activations of five steps as formulas have them; and the peak is lowest with all three tools."""
    torch.manual_seed(case.seq_len)
    model, size = GPT(case.config), (case.batch, case.seq_len)
    tokens, targets = torch.randint(case.config.vocab_size, (2, *size)).unbind()
    tokens, targets = tokens.clone(), targets.clone()
    peaks = {}
    for name, way in case.ways.items():
        said = together.keeps((accumulate, checkpoint, chunked), copy.deepcopy(model), tokens, targets, way)
        block = whole(by_hand(block_bytes, case.config, way[0], case.seq_len), f"{name}: what a block keeps")
        least, most = _formula(case, way, block)
        if not least <= said["kept"] <= most:
            between = f"{most:,}" if most - least <= SCALARS else f"{least:,} to {most:,}"
            raise Wrong("other-activations", f"{name}: {said['kept']:,} bytes wait for backward in your step, and by "
                                             f"your formula for a block it is {between}")  # fmt: skip
        peaks[name] = said["peak"]
    if (lowest := min(peaks, key=peaks.__getitem__)) != "all three":
        raise Wrong("other-lowest", f"the peak is lowest for the step that is {lowest}, {peaks[lowest]:,} bytes; all "
                                    f"three tools together have {peaks['all three']:,}")  # fmt: skip


def _formula(case: Case, way: together.Way, block: int) -> tuple[int, int]:
    """Bytes that wait for backward at the end of a forward: at least, at most.

    A checkpoint may keep the state of the random numbers; a loss in chunks both gradients, or less, and make them anew.
    """
    (rows, again, chunk), c = way, case.config
    n = rows * case.seq_len
    u, whole_batch = 4 * n * c.n_embd, 8 * case.batch * case.seq_len  # a micro-batch is a view of the batch
    rest = u + 8 * n + whole_batch + 8 * case.seq_len  # the last norm, tokens, positions
    both = u + 4 * c.vocab_size * c.n_embd
    loss = both if chunk else u + 4 * n * c.vocab_size + whole_batch + 4
    most = c.n_layer * (u if again else block) + rest + loss
    return most - (both if chunk else 0), most + again * c.n_layer * STATE + (both // 2 if chunk else SCALARS)
