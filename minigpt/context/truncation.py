"""Smart truncation: cut a long document to a budget of tokens, the older its part the shorter.

A document is a list of parts (sections, turns, pages), the newest last. Each keeps at least ``floor`` tokens; the
rest of the budget is dealt out token by token, always to the part whose next token is worth most:

    weight of a part = 0.5 ** (age / half_life)        age: parts that come after it; the newest has 0
    worth of its k-th token = weight / k

So parts that are not full hold tokens in proportion to their weights, with less than one token of rounding (the
divisors of D'Hondt, who dealt out seats), and a part that is full leaves its share to the others. The sum is the
budget exactly. Of a part that is cut, the beginning and the end stay: half each.

``floor`` is what pure decay lacks: with a half-life of 2 parts, a part of 30 parts ago weighs 1/32768, so it would be
gone, and with it a document's first page.

Left out: marks where something is cut (they are tokens, and would count), and parts chosen by what is in them.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from math import log2

from minigpt.values import check_counts, is_number


def keep(lengths: Sequence[int], budget: int, half_life: float, floor: int = 0) -> list[int]:
    """How many tokens each part keeps, in the order of ``lengths`` (tokens, oldest first).

    All of them, if they fit into ``budget``; else the sum is the budget. ``half_life`` is in parts. Raises ValueError
    for a length below 0, a half-life that is not positive, and a ``floor`` that does not fit in for every part.
    """
    check_counts(budget=budget)
    check_counts(least=0, floor=floor)
    check_counts(least=0, **{f"lengths[{i}]": length for i, length in enumerate(lengths)})
    if not is_number(half_life) or not half_life > 0:
        raise ValueError(f"half_life is {half_life!r}; it must be a number of parts above 0")
    kept = [min(floor, length) for length in lengths]
    if sum(kept) > budget:
        raise ValueError(f"floor is {floor}; {len(lengths)} parts of it do not fit into a budget of {budget}")

    def price(i: int, k: int) -> float:
        """-log2 of what part i's k-th token is worth: 0.5 ** age itself would become 0 far back."""
        return (len(lengths) - 1 - i) / half_life + log2(k)

    # Cheapest first, and the newer part where two cost the same.
    queue = [(price(i, kept[i] + 1), -i) for i, length in enumerate(lengths) if kept[i] < length]
    heapq.heapify(queue)
    for _ in range(min(budget, sum(lengths)) - sum(kept)):
        i = -queue[0][1]
        kept[i] += 1
        if kept[i] < lengths[i]:
            heapq.heapreplace(queue, (price(i, kept[i] + 1), -i))
        else:
            heapq.heappop(queue)
    return kept


def spans(lengths: Sequence[int], kept: Sequence[int]) -> list[tuple[int, int]]:
    """What stays of the document: (start, stop) in tokens, ascending, none touching the next.

    Of a part that is cut, its first ceil(kept / 2) and its last floor(kept / 2) tokens. Raises ValueError where
    ``kept`` is not one number for each part, from 0 to its length.
    """
    check_counts(least=0, **{f"lengths[{i}]": length for i, length in enumerate(lengths)})
    check_counts(least=0, **{f"kept[{i}]": k for i, k in enumerate(kept)})
    if len(kept) != len(lengths) or any(k > length for k, length in zip(kept, lengths)):
        raise ValueError(f"kept is {list(kept)}; it must have a number for each part, from 0 to {list(lengths)}")
    found: list[tuple[int, int]] = []
    begin = 0
    for length, k in zip(lengths, kept):
        end = begin + length
        for start, stop in ((begin, begin + k - k // 2), (end - k // 2, end)):
            if found and found[-1][1] == start:
                start = found.pop()[0]
            if start < stop:
                found.append((start, stop))
        begin = end
    return found


def truncate(parts: Sequence[Sequence[int]], budget: int, half_life: float, floor: int = 0) -> list[int]:
    """The tokens of all ``parts`` (oldest first) that stay, in their order. Raises ValueError as ``keep`` does."""
    lengths = [len(part) for part in parts]
    document = [token for part in parts for token in part]
    kept = keep(lengths, budget, half_life, floor)
    return [token for start, stop in spans(lengths, kept) for token in document[start:stop]]
