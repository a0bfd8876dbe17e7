"""Which blocks a checkpointing policy keeps one input for and runs again together. This file imports no torch."""

from __future__ import annotations

import math


def segments(policy: str, n_layer: int, every_n_layers: int = 2) -> list[range]:
    """The runs of blocks that are checkpointed as one, of ``n_layer`` blocks; a block in none keeps all that it saves.

    "every" takes the first of ``every_n_layers`` blocks, as transformers does; "sqrt" goes through all, isqrt(n_layer)
    at a time; every other policy but "none" goes through them one by one.
    """
    if policy == "none":
        return []
    if policy == "every":
        return [range(i, i + 1) for i in range(0, n_layer, every_n_layers)]
    size = math.isqrt(n_layer) if policy == "sqrt" else 1
    return [range(i, min(i + size, n_layer)) for i in range(0, n_layer, size)]
