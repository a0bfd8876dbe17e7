"""train_ranks(config, kinds): the same few steps with each kind of sharding, one after the other in the same processes.

    train_ranks(GPTConfig.preset("nano"), ("zero1", "zero3"))["zero3"]      [what rank 0 tells, what rank 1 tells]

``minigpt.sharding.run`` in ranks that stand and fall together: losses, and the bytes that each rank keeps. The model
is made from one seed and the text is the course's, so every kind sees the same numbers. ``steps_alone`` is the one
process to compare with.
"""

from __future__ import annotations

from typing import NamedTuple

from minigpt.data import pretraining_text, random_windows
from minigpt.memory.measured.apart import Call
from minigpt.memory.measured.meeting import Meeting
from minigpt.memory.measured.together import run_ranks
from minigpt.model import GPTConfig
from minigpt.sharding.kinds import KINDS
from minigpt.sharding.run import Run, run, run_alone
from minigpt.values import check_choice, check_counts


class Trained(NamedTuple):
    """Of each step the loss over all ranks' tokens; bytes of weights, gradients and optimizer that a rank keeps."""

    losses: list[float]
    held: dict[str, int]


def train_ranks(
    config: GPTConfig, kinds: tuple[str, ...], *, ranks: int = 2, steps: int = 3, batch: int = 1, seq_len: int = 64
) -> dict[str, list[Trained]]:
    """By kind, rank by rank. ``batch`` is that of one rank.

    Raises ValueError for an unknown kind or a count below 1, and what ``run_ranks`` raises for a rank that fails.
    """
    check_counts(ranks=ranks, steps=steps, batch=batch, seq_len=seq_len)
    for kind in kinds:
        check_choice(KINDS, kind=kind)
    given = dict(config=config, kinds=list(kinds), ranks=ranks, steps=steps, batch=batch, seq_len=seq_len)
    by_rank = run_ranks(Call(f"{__name__}:one_rank", given), ranks)
    return {kind: [Trained(**told[kind]) for told in by_rank] for kind in kinds}


def steps_alone(config: GPTConfig, *, ranks: int = 2, steps: int = 3, batch: int = 1, seq_len: int = 64) -> Trained:
    """The same steps in this process, which takes the batches of all ``ranks`` one after the other."""
    return _told(run_alone(config, _batches(ranks * batch, seq_len), steps, ranks))


def one_rank(
    config: GPTConfig, kinds: list[str], ranks: int, steps: int, batch: int, seq_len: int, rank: int, meeting: Meeting
) -> dict[str, dict]:
    """In a rank's process: what it has to tell of each kind."""
    found, batches = {}, _batches(ranks * batch, seq_len)
    for kind in kinds:
        with meeting.joined(kind, rank, ranks):
            found[kind] = _told(run(config, kind, batches, steps))._asdict()
    return found


def _batches(rows: int, seq_len: int):
    return random_windows(pretraining_text("validation"), rows, seq_len)


def _told(done: Run) -> Trained:
    return Trained(done.losses, done.held)
