"""FSDP2: torch's own ZeRO-3, ``fully_shard``, block by block.

    before a block's forward     all-gather its weights     after it    free them, or keep them for backward
    before a block's backward    all-gather them again; the next block's are gathered already
    after it                     reduce-scatter the gradients, free both

Each parameter is cut along its first dimension into W parts of ceil(d / W) rows, and is a ``DTensor`` that knows its
part; the optimizer updates that. What is in no block (embeddings, last norm, head) is the root's, which torch by itself
keeps from forward to backward.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from minigpt.checkpointing import blocks_of


def shard_blocks(model: nn.Module, *, reshard_after_forward: bool = True, **options: Any) -> nn.Module:
    """``model``, changed in place. ``options`` are fully_shard's: ``mp_policy``, ``offload_policy``, ``mesh``."""
    from torch.distributed.fsdp import fully_shard  # here, because it takes half a second

    if not reshard_after_forward:
        options["reshard_after_forward"] = False
    for block in blocks_of(model):
        fully_shard(block, **options)
    fully_shard(model, **options)
    return model
