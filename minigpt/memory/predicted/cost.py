"""What a run costs to rent: seconds of a step, times steps, times a price that the reader looks up.

    dollars               = (seconds per step x steps / 3600 + hours beside) x dollars per hour
    dollars per million   = dollars per hour / 3600 / tokens per second x 1,000,000

No price stands in this package: one is wrong within months, and two shops differ by a factor of four on one day. A
``Price`` says where it was read and when, so that a reader can tell how old it is.

Left out: disks, transfers out, taxes; and what a run costs that fails.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from math import inf

from minigpt.memory.gpus import find_gpu
from minigpt.memory.predicted.throughput import Seconds
from minigpt.values import check_counts, is_number


@dataclass(frozen=True)
class Price:
    """Dollars per hour of one ``card``, as ``source`` had it on the day ``read``. Raises ValueError without either."""

    card: str
    dollars_per_hour: float
    source: str
    read: date

    def __post_init__(self) -> None:
        object.__setattr__(self, "card", find_gpu(self.card))
        if not is_number(self.dollars_per_hour) or not 0 < self.dollars_per_hour < inf:
            raise ValueError(f"dollars_per_hour is {self.dollars_per_hour!r}; it must be a number above 0")
        if not isinstance(self.source, str) or not self.source or not isinstance(self.read, date):
            raise ValueError(f"source is {self.source!r} and read {self.read!r}; a price needs a source and a date")


def run_dollars(step: Seconds, steps: int, price: Price, hours_beside: float = 0.0) -> float:
    """Dollars for ``steps`` steps, and for ``hours_beside`` in which the card is rented and does not train.

    Raises ValueError for the price of another card than the step's.
    """
    check_counts(steps=steps)
    _same_card(step, price)
    if not is_number(hours_beside) or not 0 <= hours_beside < inf:
        raise ValueError(f"hours_beside is {hours_beside!r}; it must be a number of at least 0")
    return (step.total * steps / 3600 + hours_beside) * price.dollars_per_hour


def million_tokens_dollars(step: Seconds, price: Price) -> float:
    """Dollars for a million tokens that are trained on, padding included. Raises ValueError as ``run_dollars``."""
    _same_card(step, price)
    return price.dollars_per_hour / 3600 / step.tokens_per_second * 1_000_000


def _same_card(step: Seconds, price: Price) -> None:
    if step.card != price.card:
        raise ValueError(f"price is of {price.card}; the seconds are of {step.card}")


def breaks_even(cheap: Price, dear: Price) -> float:
    """How many times faster the dearer card must be to cost the same."""
    return dear.dollars_per_hour / cheap.dollars_per_hour
