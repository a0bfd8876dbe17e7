"""Judging a run by the weights that came out of it, with models, data and losses of the judge's own.

    begun = Beginning(PRESET, config, SEED, device)    what the runs of a notebook begin from
    trained(models, 2)                                 the notebook's models, by name
    learned(model, begun, margin, draw)                its loss on held-out pairs, which must be lower than the start's

What a notebook says of its own losses counts for nothing here.

Left out: how the weights came about. Whoever trains them otherwise has trained them.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import nn

from minigpt.base import load_base
from minigpt.checks import training
from minigpt.checks.closing import knows
from minigpt.checks.verdict import Wrong
from minigpt.data import docstring_pairs, pair_batches
from minigpt.model import GPT, GPTConfig

knows(__name__)
BATCH, SEQ_LEN, HELD_OUT = 8, 96, 32


class Beginning(NamedTuple):
    """The base for nano, else random weights of this seed."""

    preset: str
    config: GPTConfig
    seed: int
    device: torch.device

    def model(self) -> GPT:
        if self.preset == "nano":
            return load_base(self.device)
        torch.manual_seed(self.seed)
        return GPT(self.config).to(self.device)

    def batches(self, steps: int, size: int = BATCH):
        """So many batches of pairs to train on."""
        pairs = random.Random(self.seed).sample(docstring_pairs("train", SEQ_LEN), steps * size)
        return pair_batches(pairs, size, SEQ_LEN, seed=self.seed)

    def held_out(self, draw: int):
        """Batches of pairs that no run saw, others for each ``draw``."""
        pairs = random.Random(draw).sample(docstring_pairs("validation", SEQ_LEN), HELD_OUT)
        return pair_batches(pairs, BATCH, SEQ_LEN, seed=None)


def trained(models, count: int) -> Mapping:
    """``models``, a dictionary of so many. Raises Wrong where it is none."""
    if not isinstance(models, Mapping) or len(models) != count:
        raise Wrong("not-run", f"models has not the {count} runs in it: run all cells of this part, in order")
    return models


def learned(model: nn.Module, begun: Beginning, margin: float, draw: int, what: str) -> float:
    """Loss on held-out pairs, in nats per token, of a model of the judge's; it must be ``margin`` below the start's."""
    try:
        return training.fell(model, begun.model(), begun.held_out(draw), margin)[1]
    except Wrong as wrong:
        raise Wrong(wrong.id, f"{what}: {wrong}") from None
