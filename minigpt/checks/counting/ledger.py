"""The ledger of a MiniGPT's float32 step: four buckets as predicted, and what a student's own step saves at once.

four_buckets(static, saved, (what, (config, batch, seq_len)))      ``static(config)``, ``saved(config, batch, seq_len)``
saves(step, (config, batch, seq_len))                              ``step`` with two micro-batches of that shape
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from minigpt.checks.closing import knows
from minigpt.checks.counting import saved, static
from minigpt.checks.probes import training as asked
from minigpt.checks.probes import unless_wrong
from minigpt.checks.verdict import Wrong
from minigpt.model import GPT, GPTConfig

knows(__name__)
Shape = tuple[GPTConfig, int, int]


def four_buckets(static_buckets: Callable, saved_by_model: Callable, case: tuple[str, Shape]) -> None:
    what, (config, batch, seq_len) = case
    static.in_float32(static_buckets, (what, config))
    saved.by_model(saved_by_model, (config, batch, seq_len, "fake"))


def saves(step: Callable, case: Shape) -> None:
    """Within 2%: a share that a loss is multiplied with is saved too, and kernels of a GPU save a little more."""
    config, batch, seq_len = case
    one, two = ((torch.randint(config.vocab_size, (batch, seq_len)), torch.randint(config.vocab_size, (batch, seq_len)))
                for _ in range(2))  # fmt: skip
    (mine,) = asked.saved(step, GPT(config), [[one, two]])
    mine, right = unless_wrong(mine), saved.saved(config, batch, seq_len, "fake")
    if not abs(mine - right) <= 0.02 * right:
        raise Wrong(
            "other-activations",
            f"a step on 2 micro-batches of {batch} x {seq_len} saves {mine:,} bytes at once, and the forward pass of "
            f"one of them saves {right:,}",
        )
