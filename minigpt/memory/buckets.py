"""The five buckets that every byte of a training step falls into, and two small records of them.

A storage belongs to one bucket at a time, decided by identity and never by shape:

    weights       a parameter or buffer of the model
    gradients     a parameter's ``.grad``
    optimizer     a tensor in the optimizer's state (a float32 master copy of the weights included)
    activations   saved by autograd for the backward pass, and none of the above
    temporary     any other live storage
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

BUCKETS = ("weights", "gradients", "optimizer", "activations", "temporary")


@dataclass(frozen=True)
class Ledger:
    """Integer bytes in each bucket."""

    weights: int = 0
    gradients: int = 0
    optimizer: int = 0
    activations: int = 0
    temporary: int = 0

    @property
    def total(self) -> int:
        """Bytes in all five buckets."""
        return self.weights + self.gradients + self.optimizer + self.activations + self.temporary

    @property
    def persistent(self) -> int:
        """Bytes that stay from step to step: weights, gradients and optimizer state."""
        return self.weights + self.gradients + self.optimizer

    def as_dict(self) -> dict[str, int]:
        return asdict(self)


@dataclass(frozen=True)
class Reserved:
    """What a card's allocator counts. Bytes; an instant is a phase, a block and an operation.

    ``allocated``: at most, in the step, or in an evaluation and the step after it; whole blocks, as torch counts them.
    ``reserved``: at most since the training began, with room for all; ``loaded``: when the model was there.
    ``failed``: torch's sentence, where the card is too small also after unused blocks went back to it.
    """

    allocated: int
    allocated_at: str
    reserved: int
    reserved_at: str
    loaded: int
    failed: str = ""


@dataclass(frozen=True)
class StepMemory:
    """What one training step holds, predicted or measured: the same record for both.

    ``ledger``: each bucket at its own largest; ``temporary`` is what is left over at the peak. Its total
    is *not* the peak: the buckets are not all full at the same time.
    ``peak``: the buckets at the instant of the largest total. ``peak_at`` names that instant.
    ``events``: (phase, bucket's index, change in bytes), in order; phases are before, forward, backward, step.
    ``frozen``: the part of the weights that takes no gradient.
    ``card``: with a card, what its allocator counts over the training up to this step.
    """

    ledger: Ledger
    peak: Ledger
    peak_at: str
    events: tuple[tuple[str, int, int], ...] = field(default=(), repr=False)
    frozen: int = 0
    card: Reserved | None = None

    @property
    def trainable(self) -> int:
        """Bytes of weights that take a gradient."""
        return self.ledger.weights - self.frozen

    def timeline(self) -> list[tuple[str, Ledger]]:
        """(phase, ledger) after every change inside the step."""
        totals, points = [0] * len(BUCKETS), []
        for phase, bucket, change in self.events:
            totals[bucket] += change
            if phase != "before":
                points.append((phase, Ledger(*totals)))
        return points
