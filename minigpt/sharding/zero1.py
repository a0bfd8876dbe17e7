"""ZeRO, stage 1: every rank holds all weights and makes all gradients, but updates one shard, and keeps its state.

    backward     as ever: each rank has the whole gradient of its own batch
    step         reduce-scatter:  the mean of the gradients, each rank its shard
                 update:          AdamW on the shard alone: m and v are 1 / W of what they were
                 all-gather:      the new shards, so that every rank has all weights again

With AdamW in float32, P parameters and W ranks, a rank keeps 4 P + 4 P + 8 P / W bytes. It sends and receives as much
as without sharding, where the all-reduce of the gradients is a reduce-scatter and an all-gather in one.

AdamW updates number by number, so a shard needs nothing of the others. What looks at a whole matrix (Adafactor, GaLore)
cannot be cut so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from minigpt.sharding.flat import Flat, groups_of


class Zero1(nn.Module):
    """``model``, which all ranks begin with the same weights, and its optimizer, in one: call it, and ``step()``.

    ``make_optimizer`` gets the shards, one flat parameter for each group.
    """

    def __init__(self, model: nn.Module, make_optimizer: Callable[[list[nn.Parameter]], Any]) -> None:
        super().__init__()
        self.module = model
        self.groups = [Flat(parameters) for parameters in groups_of(model)]
        self.shards = nn.ParameterList(self.make_shard(group) for group in self.groups)
        self.optimizer = make_optimizer(list(self.shards))

    def make_shard(self, group: Flat) -> nn.Parameter:
        """What this rank updates: here a view, so that an update writes into the weights themselves."""
        return nn.Parameter(group.shard_of(group.flat))

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)

    def reduce(self, group: Flat, shard: nn.Parameter) -> None:
        """The group's gradients, averaged over the ranks, become the shard's. What they were is freed."""
        mean = group.reduce_scatter(group.take_gradient())
        shard.grad = mean if shard.grad is None else shard.grad + mean

    def step(self) -> None:
        for group, shard in zip(self.groups, self.shards):
            self.reduce(group, shard)
        self.update()

    @torch.no_grad()
    def update(self) -> None:
        """Each rank its shard; then all of them to everyone."""
        self.optimizer.step()
        for group, shard in zip(self.groups, self.shards):
            group.all_gather(shard)

    @property
    def state(self) -> dict:
        """The optimizer's tensors, by shard."""
        return self.optimizer.state
