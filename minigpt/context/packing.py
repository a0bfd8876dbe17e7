"""Packing: several examples in one row of tokens, in place of one example and its padding.

    padding   a batch is as long as its longest example, and every token of it is paid for
    packing   rows of a fixed length, filled as trl's "bfd" does: the longest example first, each into the row where
              the least space is left after it (best fit decreasing)

In a packed row positions start again at 0 with every example. transformers reads that off ``position_ids`` and lets
no token see another example, but only with ``use_cache=False``, which is not a model's default (transformers 5.17,
masking_utils.py). A loss must not ask an example's last token for the next one's first, so that target is ignored.

Left out: examples longer than a row (cut or split them before), and kernels that know where examples end.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence

import torch
from torch import Tensor

from minigpt.values import check_counts

IGNORE = -100


def pack(lengths: Sequence[int], row: int) -> list[list[int]]:
    """Which examples lie in each row of ``row`` tokens: lists of their numbers, every example once.

    Raises ValueError for an example of no tokens and for one longer than a row.
    """
    check_counts(row=row)
    check_counts(most=row, **{f"lengths[{i}]": length for i, length in enumerate(lengths)})
    rows: list[list[int]] = []
    space: list[tuple[int, int]] = []  # (tokens left, row), ascending
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        place = bisect_left(space, (lengths[i], 0))
        if place == len(space):
            rows.append([])
            left, n = row, len(rows) - 1
        else:
            left, n = space.pop(place)
        rows[n].append(i)
        insort(space, (left - lengths[i], n))
    return rows


def packed_row(examples: Sequence[Tensor]) -> dict[str, Tensor]:
    """One row for a model of transformers, called with ``use_cache=False``: input_ids, position_ids and labels.

    Each is (1, T) int64. ``examples`` are tokens (t,) each. Labels are not shifted; an example's first one is -100.
    Raises ValueError for no examples, for one of no tokens, and for what is no vector of int64.
    """
    if not len(examples):
        raise ValueError("examples is empty; a row must have at least one")
    for i, each in enumerate(examples):
        if not isinstance(each, Tensor) or each.dtype != torch.int64 or each.ndim != 1 or not len(each):
            raise ValueError(f"examples[{i}] is {each!r}; it must be a tensor of tokens, (t,) int64, t at least 1")
    labels = [example.clone() for example in examples]
    for each in labels:
        each[0] = IGNORE
    positions = [torch.arange(len(example)) for example in examples]
    rows = dict(input_ids=list(examples), position_ids=positions, labels=labels)
    return {name: torch.cat(parts)[None] for name, parts in rows.items()}
