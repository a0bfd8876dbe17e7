"""Judging the largest batch that fits: the truth is ``predict``'s peak, and the meter confirms both sides of it.

    fits(largest_batch, case)      ``largest_batch(config, seq_len, room, checkpointed)``, an int

``room`` is what a step may put on top of weights and moments. It is chosen in the middle between the peaks of two
batches, so that the arithmetic need not be exact to the byte.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from minigpt.checks.activations import asking  # noqa: F401  closes the book
from minigpt.checks.closing import by_hand, knows
from minigpt.checks.comparing import integer
from minigpt.checks.naming import Hints
from minigpt.memory.buckets import StepMemory
from minigpt.memory.measured.step import measure
from minigpt.memory.plan import TrainingPlan
from minigpt.memory.predicted.step import predict
from minigpt.model import GPTConfig

knows(__name__)

_confirmed: set[Case] = set()  # the cases that the meter has been asked about


class Case(NamedTuple):
    """A MiniGPT, the length of its sequences, the batch that is the largest, and whether blocks are checkpointed."""

    config: GPTConfig
    seq_len: int
    batch: int
    checkpointed: bool = False

    @property
    def text(self) -> str:
        c, kind = self.config, "checkpointed" if self.checkpointed else "not checkpointed"
        return f"{c.n_layer} layers, {c.n_embd} wide, {c.vocab_size:,} words, {self.seq_len} tokens, {kind}"

    def plan(self, batch: int) -> TrainingPlan:
        kind = "full" if self.checkpointed else "none"
        return TrainingPlan(batch=batch, seq_len=self.seq_len, checkpointing=kind, optimizer_loop="single")


def fits(largest_batch: Callable, case: Case) -> None:
    room = room_of(case)
    mine = by_hand(largest_batch, case.config, case.seq_len, room, case.checkpointed)
    _confirm(case, room)
    what = f"{case.text}, {room:,} bytes of room"
    integer(mine, case.batch, what, wrong=batch_mistakes(case, room))


def on_top(step: StepMemory) -> int:
    """Bytes at the peak, without weights and moments."""
    return step.peak.total - step.peak.weights - step.peak.optimizer


def room_of(case: Case) -> int:
    """Bytes that hold the case's batch, and half a sequence more; for none, a fifth of what one needs."""
    fits, bursts = (on_top(predict(case.config, case.plan(n))) if n else 0 for n in (case.batch, case.batch + 1))
    return (fits + bursts) // (2 if case.batch else 5)


def _confirm(case: Case, room: int) -> None:
    """RuntimeError if the meter says otherwise; asked once for each case."""
    if case in _confirmed:
        return
    inside, outside = (
        on_top(measure(case.config, case.plan(n), "cpu")) if n else 0 for n in (case.batch, case.batch + 1)
    )
    if not inside <= room < outside:
        raise RuntimeError(f"{case.text}: the meter reads {inside:,} and {outside:,}, and {room:,} is not between them")
    _confirmed.add(case)


def instants(case: Case) -> dict[str, tuple[int, int]]:
    """(bytes per sequence, bytes whatever the batch) of each instant that can be the fullest."""
    c, u = case.config, 4 * case.seq_len * case.config.n_embd
    logits = 12 * case.seq_len * c.vocab_size
    if not case.checkpointed:
        return {"loss": ((16 * c.n_layer + 2) * u + logits, 0)}
    others = 48 * c.n_embd**2 * (c.n_layer - 1)
    return {"loss": ((c.n_layer + 2) * u + logits, 0), "last": ((c.n_layer + 20) * u, 0), "first": (21 * u, others)}


def batch_mistakes(case: Case, room: int) -> Hints:
    """The batch that a mistake comes to."""
    c, u = case.config, 4 * case.seq_len * case.config.n_embd
    logits, known = 4 * case.seq_len * c.vocab_size, instants(case)
    blocks = (16 * c.n_layer + 2) * u

    def alone(*names: str) -> int:
        return min(max(0, room - once) // each for each, once in (known[name] for name in names))

    others = {
        "one-more": ("one more than fits: round down", case.batch + 1),
        "one-fewer": ("one fewer than fits", case.batch - 1),
        "none": ("some do fit", 0),
    }
    if not case.batch:
        least = min((room - once) // each for each, once in known.values())
        return {"negative": ("that is below zero; where none fits it is 0", least), "one-more": ("none fits", 1)}
    if not case.checkpointed:
        P = c.vocab_size * c.n_embd + c.context * c.n_embd + 12 * c.n_layer * c.n_embd**2
        return {
            "no-logits": ("the logits are left out; at the start of backward there are three tensors of their size",
                          room // blocks),
            "logits-once": ("one tensor as large as the logits is counted; at the start of backward there are three",
                            room // (blocks + logits)),
            "logits-twice": ("two tensors as large as the logits are counted; at the start of backward there are three",
                             room // (blocks + 2 * logits)),
            "gradients-too": ("all gradients are counted beside all activations; the two are never there at once",
                              max(0, room - 4 * P) // (blocks + 3 * logits)),
            "one-block": ("one block's activations are counted; every block's are there", room // (
                18 * u + 3 * logits)),
            "inputs": ("a block's input alone is counted for each block, as if they were checkpointed",
                       room // ((c.n_layer + 2) * u + 3 * logits)),
        } | others  # fmt: skip
    return {
        "all-blocks": ("every block is counted whole; with checkpoints one is, and the others' inputs",
                       room // (blocks + 3 * logits)),
        "loss-alone": ("that is by the loss alone; when the last block runs again more is there", alone("loss")),
        "no-first": ("at the first block the gradients of the others are there: with few tokens that is the fullest",
                     alone("loss", "last")),
        "all-gradients": ("at the first block the gradients of the L - 1 others are there; its own are made only then",
                          min(alone("loss", "last"), max(0, room - 48 * c.n_embd**2 * c.n_layer) // (21 * u))),
        "no-loss": ("the start of backward, with the loss, is left out", alone("last", "first")),
        "no-last": ("the last block, run again, is left out", alone("loss", "first")),
        "sum": ("the instants are added up; the fullest of them decides",
                max(0, room - known["first"][1]) // sum(each for each, _ in known.values())),
        "loss-and-block": ("the loss is over when a block is open; the two are not there at once",
                           room // ((c.n_layer + 20) * u + 3 * logits)),
        "block-without-rest": ("the open block is counted without the gradients in its backward, 5 u, that lie over it",
                               min(room // ((c.n_layer + 15) * u), alone("loss", "first"))),
    } | others  # fmt: skip
