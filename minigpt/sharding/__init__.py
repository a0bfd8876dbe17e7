"""Sharding: W ranks train one model on W batches, and none of them holds all of it.

With P parameters in float32 and AdamW, a rank keeps, in bytes, and sends per step, in units of 4 P (W - 1) / W bytes:

                     weights     gradients    state        sends
    data_parallel    4 P         4 P          8 P          2    all-reduce of the gradients
    zero1            4 P         4 P          8 P / W      2    reduce-scatter of them, all-gather of the weights
    zero2            4 P         4 P / W      8 P / W      2    the same, block by block
    zero3            4 P / W     4 P / W      8 P / W      3    one all-gather more, for backward
    fsdp             4 P / W     4 P / W      8 P / W      3    as zero3, by torch

    flat             a group of parameters as one tensor, and its shards: what the three stages are made of

``torchrun --nproc_per_node 2 -m minigpt.sharding`` trains a MiniGPT with any of them (``--help``). The processes talk
through torch.distributed: gloo on CPUs, NCCL on GPUs. What a rank holds is measured by
``minigpt.memory.measured.ranks``, and predicted by ``minigpt.memory.predict``.
"""

from minigpt.sharding.data_parallel import DataParallel
from minigpt.sharding.flat import Flat, groups_of
from minigpt.sharding.fsdp import shard_blocks
from minigpt.sharding.kinds import shard, whole_weights
from minigpt.sharding.zero1 import Zero1
from minigpt.sharding.zero2 import Zero2
from minigpt.sharding.zero3 import Zero3

__all__ = [
    "DataParallel", "Flat", "Zero1", "Zero2", "Zero3", "groups_of", "shard", "shard_blocks", "whole_weights",
]  # fmt: skip
