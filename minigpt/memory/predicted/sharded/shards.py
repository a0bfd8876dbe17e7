"""How a tensor is dealt out to W ranks.

    fully_shard     rows as torch.chunk cuts them: ceil(d / W) to each rank, as long as there are any; every rank's
                    storage has room for ceil(d / W)
    ZeRO, flat      a group of n numbers as one vector of W ceil(n / W): a part to each rank, the padding included

Source: torch 2.13, distributed/fsdp/_fully_shard/_fsdp_param.py; ``minigpt.sharding.flat``.
"""

from __future__ import annotations

from math import prod

Shape = tuple[int, ...]


def most_rows(shape: Shape, ranks: int) -> int:
    """ceil(d / W): the rows that a rank has room for."""
    return -(-shape[0] // ranks)


def rows_of(shape: Shape, ranks: int, rank: int) -> int:
    """The rows that ``rank`` has: the last ranks may have fewer, or none."""
    most = most_rows(shape, ranks)
    return min(most, max(0, shape[0] - rank * most))


def padded(shape: Shape, ranks: int) -> int:
    """Numbers of a tensor whose rows are filled up to a multiple of W."""
    return ranks * most_rows(shape, ranks) * prod(shape[1:])
