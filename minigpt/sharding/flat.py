"""A group of parameters as one flat tensor, cut into equal shards: what every stage of ZeRO sends and keeps.

With W ranks and a group of n numbers, the flat tensor has W * ceil(n / W): the end is padding.

    flat     [ q_proj | k_proj | v_proj | o_proj | up_proj | down_proj | norms | padding ]     the same on every rank
    shard        [ rank 0's        | rank 1's           | ...                            ]     ceil(n / W) on each

The parameters are views of the flat tensor, so that one collective reaches them all:

    all-gather        every rank gives its shard and gets the whole:                        W shards  ->  flat
    reduce-scatter    every rank gives a whole gradient and gets its shard of the mean:     flat  ->  W shards

Either way each rank sends and receives (W - 1) / W of the flat tensor. PyTorch's first FSDP has the same flat tensor;
the second (``fully_shard``) cuts every parameter by itself, along its first dimension. Source: ZeRO, arXiv 1910.02054.

Left out: collectives that run beside the computation (``async_op=True``), several dtypes in one group.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

from minigpt.checkpointing import blocks_of


class Flat:
    """The given parameters, all of one dtype, become views of the tensor ``flat``, which has their values."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.parameters, self.rank, self.ranks = parameters, dist.get_rank(), dist.get_world_size()
        self.sizes = [p.numel() for p in parameters]
        self.length = -(-sum(self.sizes) // self.ranks)  # of a shard
        self.flat = self.join([p.detach() for p in parameters])  # (W * length,)
        for parameter, piece in zip(parameters, self.flat.split([*self.sizes, self.padding])):
            parameter.data = piece.view(parameter.shape)

    @property
    def padding(self) -> int:
        """How many zeros the flat tensor ends in."""
        return self.length * self.ranks - sum(self.sizes)

    def join(self, tensors: list[Tensor]) -> Tensor:
        """A new flat tensor, (W * length,), of tensors shaped like the parameters."""
        return torch.cat([*(tensor.flatten() for tensor in tensors), tensors[0].new_zeros(self.padding)])

    def shard_of(self, flat: Tensor) -> Tensor:
        """This rank's part of ``flat``, (length,): a view."""
        return flat[self.rank * self.length : (self.rank + 1) * self.length]

    def all_gather(self, shard: Tensor) -> None:
        """Every rank's ``shard``, (length,), into the flat tensor, and so into the parameters."""
        dist.all_gather_single(self.flat, shard)

    def reduce_scatter(self, gradient: Tensor) -> Tensor:
        """This rank's shard, (length,), of the mean of all ranks' flat ``gradient``, (W * length,)."""
        shard = gradient.new_empty(self.length)
        dist.reduce_scatter_single(shard, gradient, op=dist.ReduceOp.AVG)
        return shard

    def take_gradient(self) -> Tensor:
        """The parameters' gradients as one flat tensor, (W * length,); they lose them. One without has zeros."""
        gradient = self.join([torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters])
        for parameter in self.parameters:
            parameter.grad = None
        return gradient


def groups_of(model: nn.Module) -> list[list[nn.Parameter]]:
    """The parameters that are trained: a group for each block, and one for the rest. A tied weight comes once."""
    blocks = [[p for p in block.parameters() if p.requires_grad] for block in blocks_of(model)]
    inside = {id(p) for block in blocks for p in block}
    rest = [p for p in model.parameters() if p.requires_grad and id(p) not in inside]
    return [group for group in (*blocks, rest) if group]
