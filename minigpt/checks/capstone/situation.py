"""What a plan has to do in lab 14: a model, a card and documents, and what one epoch over them comes to.

    situation = Situation.of(FIRST)         the lab's own numbers, a dictionary
    situation.rows(plan)                    rows of ``plan.seq_len`` tokens that hold all documents, whole
    situation.updates(plan)                 optimizer steps of an epoch

A row is a document, filled up to ``seq_len``; with sequences "packed" it is as many documents as go into it: the
longest first, each into the row in which it leaves least room (best fit decreasing, as trl's "bfd").
"""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

from minigpt.memory.plan import TrainingPlan


class Situation(NamedTuple):
    """``lengths``: (tokens of a document, how many such documents). ``documents``: of one update, on average, from and
    to. ``trained``: parameters at least. ``hours``: for an epoch, at most."""

    model: str
    card: str
    lengths: tuple[tuple[int, int], ...]
    documents: tuple[int, int]
    trained: int
    hours: float

    @classmethod
    def of(cls, told: dict[str, Any]) -> Situation:
        return cls(**{**told, "lengths": tuple(told["lengths"].items()), "documents": tuple(told["documents"])})

    @property
    def how_many(self) -> int:
        """How many documents there are."""
        return sum(count for _, count in self.lengths)

    @property
    def longest(self) -> int:
        return max(length for length, _ in self.lengths)

    def rows(self, plan: TrainingPlan) -> int:
        return packed(self.lengths, plan.seq_len) if plan.sequences == "packed" else self.how_many

    def updates(self, plan: TrainingPlan) -> int:
        return -(-self.rows(plan) // (plan.batch * plan.accumulation))

    def documents_of(self, plan: TrainingPlan) -> float:
        """Documents in one update, on average over full ones."""
        return self.how_many * plan.batch * plan.accumulation / self.rows(plan)


def packed(lengths: tuple[tuple[int, int], ...], seq_len: int) -> int:
    """How many rows hold all documents, none of them cut. ``seq_len`` is no smaller than the longest."""
    free: Counter[int] = Counter()  # rows by the room that is left in them
    rows = 0
    for length, count in sorted(lengths, reverse=True):
        for _ in range(count):
            room = min((room for room in free if room >= length), default=0)
            if room:
                free[room] -= 1
                if not free[room]:
                    del free[room]
            else:
                rows, room = rows + 1, seq_len
            free[room - length] += 1
    return rows
