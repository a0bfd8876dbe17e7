"""What generating costs: the key-value cache of answers in the making; and the logits of a batch, whole and by tiles.

    cache    2 * layers * key-value width * bytes, for each token of each sequence (width: key heads * head width)
    logits   batch * tokens * V * bytes, for each copy
    tile     min(tokens, 4096) * 32768 * bytes, of which trl has one at a time, forward and backward

A cache is as large as its longest sequence makes it: all sequences of a batch are padded to one length. It does not
depend on how many query heads there are, and nothing of it is left when training goes on.

Left out: a window that forgets, cached states of another shape (DeepSeek's), and the pages of a server such as vLLM,
which takes a share of the card whether it needs it or not.
"""

from __future__ import annotations

from typing import Any

from minigpt.memory.families import Architecture
from minigpt.memory.families.losses import TILE_TOKENS, TILE_WORDS
from minigpt.values import check_counts


def cache_per_token(model, itemsize: int = 2) -> int:
    """Bytes of cache for one token of one sequence; ``itemsize``: bytes of one number, 2 in bfloat16.

    Raises ValueError for a model whose cache is not of this kind, naming what it has.
    """
    check_counts(itemsize=itemsize)
    architecture: Any = Architecture.of(model)
    if architecture.family in ("minigpt", "cs336", "deepseek_v3"):
        why = {"deepseek_v3": "caches keys and values of two widths"}.get(architecture.family, "has no cache")
        raise ValueError(f"model_type is {architecture.family!r}, which {why}")
    if getattr(architecture, "window", None) is not None:
        raise ValueError(f"the model's window is {architecture.window}; a cache that forgets is not covered here")
    return 2 * architecture.n_layer * architecture.n_kv_head * architecture.head_dim * itemsize


def cache(model, sequences: int, tokens: int, itemsize: int = 2) -> int:
    """Bytes of the cache of ``sequences`` of ``tokens`` each: the prompt's and the answer's."""
    check_counts(sequences=sequences, tokens=tokens)
    return sequences * tokens * cache_per_token(model, itemsize)


def logits(model, batch: int, seq_len: int, itemsize: int = 4) -> int:
    """Bytes of one copy of all logits."""
    check_counts(batch=batch, seq_len=seq_len, itemsize=itemsize)
    return batch * seq_len * Architecture.of(model).vocab_size * itemsize


def tile(labels: int, itemsize: int = 2) -> int:
    """Bytes of the one tile of logits that trl makes for so many ``labels`` (tokens that count)."""
    check_counts(labels=labels, itemsize=itemsize)
    return min(labels, TILE_TOKENS) * TILE_WORDS * itemsize
