"""Every way to share a training, by its name: the model to call, and the optimizer to step with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from minigpt.sharding.data_parallel import DataParallel
from minigpt.sharding.fsdp import shard_blocks
from minigpt.sharding.zero1 import Zero1
from minigpt.sharding.zero2 import Zero2
from minigpt.sharding.zero3 import Zero3, gather
from minigpt.values import check_choice

BY_HAND = {"data_parallel": DataParallel, "zero1": Zero1, "zero2": Zero2, "zero3": Zero3}
KINDS = (*BY_HAND, "ddp", "fsdp2")


def shard(model: nn.Module, kind: str, make_optimizer: Callable[[list], Any], **options) -> tuple[nn.Module, Any]:
    """``model`` shared by the ranks of the default process group, which all have it with the same weights.

    ``make_optimizer`` gets a list of parameters; ``options`` are those of DistributedDataParallel for "ddp", and of
    ``shard_blocks`` for "fsdp2". Raises ValueError for another ``kind``.
    """
    check_choice(KINDS, kind=kind)
    if kind in BY_HAND:
        shared = BY_HAND[kind](model, make_optimizer, **options)
        return shared, shared
    shared = DistributedDataParallel(model, **options) if kind == "ddp" else shard_blocks(model, **options)
    return shared, make_optimizer([p for p in shared.parameters() if p.requires_grad])


@torch.no_grad()
def whole_weights(shared: nn.Module) -> list[Tensor]:
    """The weights as one process has them, gathered from all ranks, which all must call this."""
    if isinstance(shared, Zero3):
        for group, shard in zip(shared.groups, shared.shards):
            gather(group, shard)
    model = shared
    if isinstance(shared, (DataParallel, Zero1, DistributedDataParallel)):
        model = shared.module
    return [p.full_tensor() if hasattr(p, "full_tensor") else p.detach() for p in model.parameters()]
