"""ZeRO, stage 3: as stage 2, and the weights are there for as long as their block runs.

    before a block's forward     all-gather its weights            after it     free them
    before a block's backward    all-gather them again             after it     reduce-scatter the gradients, free both
    step                         update the shard: there is nothing to send

A rank keeps 4 P / W + 4 P / W + 8 P / W bytes, and while it computes one whole block comes on top, and the group of the
rest (embeddings, last norm, head), which stays from the beginning of forward to the end of backward. Every weight is
gathered twice and every gradient scattered once: half as much traffic again as in stages 1 and 2.

Freeing is to give the flat tensor's memory back and keep the tensor: parameters, and what autograd has saved of them,
are views of it, and find their numbers there when it has been gathered again. FSDP does the same.

Left out: gathering the next block while this one computes (FSDP's prefetch), frozen weights.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from minigpt.checkpointing import blocks_of
from minigpt.sharding.flat import Flat
from minigpt.sharding.zero2 import Zero2


class Zero3(Zero2):
    """As ``Zero2``. Raises ValueError for a model with frozen weights."""

    def __init__(self, model: nn.Module, make_optimizer) -> None:
        frozen = [name for name, p in model.named_parameters() if not p.requires_grad]
        if frozen:
            raise ValueError(f"model has frozen weights, {frozen[0]} and so on; here all must be trained")
        super().__init__(model, make_optimizer)
        *blocks, rest = zip(self.groups, self.shards)
        for block, (group, shard) in zip(blocks_of(model), blocks):
            block.register_forward_pre_hook(lambda block, args, of=(group, shard): gather(*of))
            block.register_forward_hook(lambda block, args, output, of=(group, shard): leave(output, *of))
        model.register_forward_pre_hook(lambda model, args, of=rest: gather(*of))
        for group in self.groups:
            free(group)

    def make_shard(self, group: Flat) -> nn.Parameter:
        """A copy: the flat tensor itself is about to go."""
        return nn.Parameter(group.shard_of(group.flat).clone())

    def reduce(self, group: Flat, shard: nn.Parameter) -> None:
        super().reduce(group, shard)
        free(group)

    def update(self) -> None:
        self.optimizer.step()


def gather(group: Flat, shard: Tensor) -> None:
    """All of the group's weights."""
    with torch.no_grad():
        group.flat.untyped_storage().resize_(group.flat.numel() * group.flat.itemsize)
        group.all_gather(shard)


def free(group: Flat) -> None:
    """None of them: the tensor stays, and has no memory."""
    group.flat.untyped_storage().resize_(0)


def leave(output: Tensor, group: Flat, shard: Tensor) -> None:
    """After a block's forward: free its weights, and gather them when the gradient of its output is there."""
    free(group)
    if output.requires_grad:
        output.register_hook(lambda gradient: gather(group, shard))
