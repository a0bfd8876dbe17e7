"""The closed book of lab 11: while an answer runs, the course's allocator refuses, and what replays with it."""

from __future__ import annotations

from minigpt.checks.closing import knows
from minigpt.memory.predicted import reserved
from minigpt.memory.predicted.allocator import Allocator, Options, Pool, expandable, full, releasing, replaying

RULES = (
    Allocator.__init__, Allocator.allocate, Allocator.free, Pool.__init__, Pool.take, Pool.merge,
    Options.round, Options.segment_size, Options.splits,
)  # fmt: skip
knows(*RULES, *(module.__name__ for module in (reserved, expandable, full, releasing, replaying)))
