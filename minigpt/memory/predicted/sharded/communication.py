"""What a rank sends and receives in a step, by collective.

    all-gather        each rank gives a shard and gets the whole of n bytes         (W - 1) / W n
    reduce-scatter    each rank gives n bytes and gets its shard of their mean      (W - 1) / W n
    all-reduce        each rank gives n bytes and gets their mean                   2 (W - 1) / W n
    broadcast         each rank gets the first one's n bytes                                      n

So much goes out of every rank, and as much comes in, if no byte goes twice over the same way (a ring); no algorithm
needs less. Source: Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms (2009); NCCL's tests, PERFORMANCE.md.

Of a broadcast the first rank receives nothing, and the last sends nothing on. Left out: the few bytes by which ranks
agree on how a training begins.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from minigpt.memory.engine.alone import Alone
from minigpt.memory.plan import TrainingPlan
from minigpt.memory.units import readable


class Sharing(Alone):
    """Of several ranks: notes what they pass on."""

    def __init__(self) -> None:
        self.calls: Counter[tuple[str, str]] = Counter()
        self.passed: Counter[tuple[str, str]] = Counter()

    def passes(self, collective: str, phase: str, nbytes: int) -> None:
        """``nbytes`` of the whole, in one call."""
        self.calls[collective, phase] += 1
        self.passed[collective, phase] += nbytes


@dataclass(frozen=True)
class Sent:
    """One kind of collective in one phase of a step. ``nbytes``: of the whole tensors that it was called with."""

    collective: str
    phase: str
    calls: int
    nbytes: int
    ranks: int

    @property
    def sent(self) -> int:
        """Bytes that go out of a rank, and as many come in."""
        if self.collective == "broadcast":
            return self.nbytes
        ways = 2 if self.collective == "all-reduce" else 1
        return ways * (self.ranks - 1) * self.nbytes // self.ranks

    def __str__(self) -> str:
        return f"  {self.collective:<15} {self.phase:<9} {self.calls:>5} times  {readable(self.sent):>10}"


def sent_by(ranks: Alone, plan: TrainingPlan) -> tuple[Sent, ...]:
    """What was noted, in the order in which each collective was first called. One rank alone has nothing."""
    if not isinstance(ranks, Sharing):
        return ()
    return tuple(Sent(*key, ranks.calls[key], nbytes, plan.ranks) for key, nbytes in ranks.passed.items())
