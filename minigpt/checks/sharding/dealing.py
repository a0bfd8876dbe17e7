"""Judging how n numbers are dealt out to W ranks.

lengths(shard_length, (n, ranks))            the numbers of a shard, padding included
parts(own_part, (n, ranks))                  which of the n numbers each rank has
joins(flat, Tensors(shapes, ranks))          tensors as one, with zeros at its end
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from minigpt.checks.closing import asked_first, by_hand, knows
from minigpt.checks.comparing import close, integer, show, whole
from minigpt.checks.naming import Hints
from minigpt.checks.sharding import asking  # noqa: F401  closes the book
from minigpt.checks.verdict import Wrong

knows(__name__)


class Tensors(NamedTuple):
    shapes: tuple[tuple[int, ...], ...]
    ranks: int
    dtype: torch.dtype = torch.float32
    turned: bool = False  # matrices lie column after column in memory
    seed: int = 0

    @property
    def text(self) -> str:
        return f"{str(self.dtype)[6:]} tensors of {', '.join(map(str, self.shapes))} for {self.ranks} ranks"

    def tensors(self) -> list[Tensor]:
        draw = torch.Generator().manual_seed(self.seed)
        made = [torch.rand(shape, generator=draw).add(0.5).to(self.dtype) for shape in self.shapes]
        return [t.T.contiguous().T if self.turned and t.dim() == 2 else t for t in made]


def length_of(n: int, ranks: int) -> int:
    return -(-n // ranks)


def lengths(shard_length: Callable, case: tuple[int, int]) -> None:
    n, ranks = case
    mine = by_hand(shard_length, n, ranks)
    integer(mine, length_of(n, ranks), f"a shard of {n:,} numbers and {ranks} ranks", slips=length_slips(n, ranks))


def length_slips(n: int, ranks: int) -> list[Hints]:
    right = length_of(n, ranks)
    given = {
        "rounded-down": ("it is rounded down: all shards together must have room for all numbers", n // ranks),
        "one-too-many": ("it divides: no padding is needed", n // ranks + 1),
        "two-ranks": ("it is a shard of 2 ranks; the number of ranks is an argument", length_of(n, 2)),
        "all-shards": ("all shards together have that; one is asked for", right * ranks),
        "whole": ("that is all numbers; a shard is one rank's", n),
        "nearest": ("it is rounded to the nearest; all shards together must have room", round(n / ranks)),
    }
    return [{id: (sentence, value - right) for id, (sentence, value) in given.items()}]


def parts(own_part: Callable, case: tuple[int, int]) -> None:
    n, ranks = case
    asked = [lambda rank=rank: by_hand(own_part, n, ranks, rank) for rank in range(ranks)]
    mine = [_pair(given, f"rank {rank} of {ranks}, {n:,} numbers") for rank, given in enumerate(asked_first(asked))]
    right = dealt(n, ranks)
    plain = [_plain(pair, n) for pair in mine]
    if plain == [_plain(pair, n) for pair in right]:
        return
    for id, (sentence, other) in part_mistakes(n, ranks).items():
        if plain == [_plain(pair, n) for pair in other]:
            raise Wrong(id, f"{n:,} numbers, {ranks} ranks: {sentence}")
    rank = next(r for r in range(ranks) if plain[r] != _plain(right[r], n))
    raise Wrong(
        "other-part", f"rank {rank} of {ranks}, {n:,} numbers: {mine[rank]} is given, and {right[rank]} is right"
    )


def _pair(given, what: str) -> tuple[int, int]:
    if not isinstance(given, (tuple, list)) or len(given) != 2:
        raise Wrong("no-pair", f"{what}: {show(given)} is given; (start, stop) is asked for")
    start, stop = (whole(number, what) for number in given)
    return start, stop


def _plain(pair: tuple[int, int], n: int) -> tuple[int, int]:
    """Every empty part is alike."""
    return (n, n) if pair[0] == pair[1] else pair


def dealt(n: int, ranks: int) -> list[tuple[int, int]]:
    length = length_of(n, ranks)
    return [(min(r * length, n), min((r + 1) * length, n)) for r in range(ranks)]


def part_mistakes(n: int, ranks: int) -> Hints:
    """What each mistake gives, rank by rank."""
    length, low, more = length_of(n, ranks), n // ranks, n % ranks
    even = [(r * low + min(r, more), (r + 1) * low + min(r + 1, more)) for r in range(ranks)]
    right = dealt(n, ranks)
    return {
        "padding-counted": ("the last part reaches into the padding; only the n numbers are asked for",
                            [(r * length, (r + 1) * length) for r in range(ranks)]),
        "start-beyond": ("a part begins after the last number; where nothing is left it is (n, n)",
                         [(r * length, min((r + 1) * length, n)) for r in range(ranks)]),
        "spread": ("what does not divide is spread over the first ranks, as tensor_split does it; here each part has "
                   "ceil(n / W), as long as there are numbers", even),
        "rest-to-last": ("the last rank has what does not divide on top; each part has ceil(n / W)",
                         [(r * low, n if r == ranks - 1 else (r + 1) * low) for r in range(ranks)]),
        "remainder-lost": ("n // W numbers each leave the last ones with nobody",
                           [(r * low, (r + 1) * low) for r in range(ranks)]),
        "from-one": ("ranks count from 0, and this counts them from 1",
                     [(min((r - 1) * length, n), min(r * length, n)) for r in range(ranks)]),
        "backwards": ("the last rank has the first part; rank 0 has it", right[::-1]),
        "inclusive": ("stop is the first number that is not in the part, as in a slice",
                      [(a, b - 1) for a, b in right]),
        "length-for-stop": ("start and a count are given; start and stop are asked", [(a, b - a) for a, b in right]),
        "remainder-for-rank": ("rank and remainder are interchanged", [(min((n % ranks) * length, n),
                               min((n % ranks + 1) * length, n))] * ranks),
    }  # fmt: skip


def joins(flat: Callable, case: Tensors) -> None:
    mine = by_hand(flat, case.tensors(), case.ranks)
    what, tensors = case.text, case.tensors()
    if not isinstance(mine, Tensor):
        raise Wrong("no-tensor", f"{what}: {show(mine)} is given; one tensor is asked for")
    right, others = joined(tensors, case.ranks), join_mistakes(tensors, case.ranks)
    if mine.dim() != 1:
        raise Wrong("not-flat", f"{what}: the shape is {tuple(mine.shape)}; one dimension is asked for")
    if mine.dtype != case.dtype:
        raise Wrong("other-dtype", f"{what}: it has become {mine.dtype}: are the zeros of another dtype?")
    for id, (sentence, other) in others.items():
        if other.shape == mine.shape != right.shape and mine.equal(other):
            raise Wrong(id, f"{what}: {sentence}")
    if len(mine) != len(right):
        raise Wrong("other-length", f"{what}: it has {len(mine)} numbers, and should have {len(right)}")
    close(
        mine, right, what, rtol=0, atol=0, wrong={id: hint for id, hint in others.items() if len(hint[1]) == len(right)}
    )


def joined(tensors: list[Tensor], ranks: int) -> Tensor:
    n = sum(t.numel() for t in tensors)
    return torch.cat([*(t.reshape(-1) for t in tensors), tensors[0].new_zeros(ranks * length_of(n, ranks) - n)])


def join_mistakes(tensors: list[Tensor], ranks: int) -> Hints:
    n, right = sum(t.numel() for t in tensors), joined(tensors, ranks)
    numbers, padding = right[:n], len(right) - n
    each = torch.cat([joined([t], ranks) for t in tensors])
    turned = torch.cat([*(t.T.reshape(-1) if t.dim() == 2 else t.reshape(-1) for t in tensors), right[n:]])
    return {
        "not-padded": ("it lacks the zeros at the end: W shards of ceil(n / W) are asked for", numbers),
        "always-padded": ("it divides, and needs no padding", torch.cat([numbers, numbers.new_zeros(ranks)])),
        "pads-each": ("every tensor is filled up by itself; here it is done once, at the end of all", each),
        "pads-by-remainder": ("n % W zeros stand at the end; what lacks to a multiple of W is asked for",
                              torch.cat([numbers, numbers.new_zeros(n % ranks)])),
        "cut-off": ("it is cut to a multiple of W: numbers are lost", numbers[: n // ranks * ranks]),
        "pads-first": ("the zeros stand first; they belong at the end", torch.cat([right[n:], numbers])),
        "padding-not-zero": ("the padding is not zero", torch.cat([numbers, torch.ones_like(right[n:])])),
        "padding-repeats": ("the padding repeats numbers; zeros are asked for",
                            torch.cat([numbers, numbers[:1].expand(padding)])),
        "transposed": ("matrices are laid out column after column; row after row is asked for", turned),
        "backwards": ("they are in another order", torch.cat([*(t.reshape(-1) for t in tensors[::-1]), right[n:]])),
    }  # fmt: skip
