"""A reader's guess: written into a cell before the truth is seen, and laid beside it afterwards.

    my_peak = guess(50, "GB")                                        # right below a "Predict"; edit the number
    my_peak.against(step.peak.total, {"without the optimizer": n})   # after the measurement: one sentence

How far off is (guess - truth) / truth. Within 3% a guess counts as right. A guess within 1.5% of what a usual slip
gives is told which slip that is; GB for GiB, and GiB for GB, are tried for every size.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from numbers import Real

from minigpt.memory.units import GB, GIB, UNITS

RIGHT, SLIP = 0.03, 0.015
SIGNS = {"ratio": "×", "percent": "%", "count": ""}  # what is no size; printed right behind the number
MIXED_UP = {"GB where GiB was meant": GB / GIB, "GiB where GB was meant": GIB / GB}


@dataclass(frozen=True)
class Guess:
    """A positive ``value`` in ``unit``: a unit of bytes (``minigpt.memory.units.UNITS``), ratio, percent or count."""

    value: float
    unit: str

    def __post_init__(self):
        if self.unit not in UNITS and self.unit not in SIGNS:
            raise ValueError(f"unit is {self.unit!r}; allowed: {', '.join([*UNITS, *SIGNS])}")
        _check_positive("value", self.value)

    def __str__(self):
        """As the reader wrote it: '50 GB', '27×', '12.5%'."""
        return self._with_unit(f"{self.value:,}")

    @property
    def bytes(self) -> float:
        """The guess in bytes. Raises ValueError where ``unit`` is none of bytes."""
        if self.unit not in UNITS:
            raise ValueError(f"unit is {self.unit!r}; only a guess in {', '.join(UNITS)} has bytes")
        return self.value * UNITS[self.unit]

    def against(self, truth: float, slips: dict[str, float] | None = None) -> None:
        """Print one sentence: the guess, the truth, how far off, and the slip that the guess looks like.

        ``truth`` and the values of ``slips``, which is what each named mistake gives, are bytes where the guess is in
        a unit of bytes, and plain numbers (27 for 27×, 12.5 for 12.5%) otherwise. Raises ValueError for one that is
        not positive, and for a slip that gives the truth: that would be no slip.
        """
        _check_positive("truth", truth)
        tried = dict(slips or {})
        for name, value in tried.items():
            _check_positive(f"slips[{name!r}]", value)
            if value == truth:
                raise ValueError(f"slips[{name!r}] is {value!r}, the truth; a slip must give something else")
        mine = self.bytes if self.unit in UNITS else self.value
        if self.unit in UNITS:
            tried |= {name: truth * factor for name, factor in MIXED_UP.items()}
        off = mine / truth - 1
        said = f"Your guess: {self}. It is {self._shown(truth)}: "
        slip = min(tried, key=lambda name: abs(mine / tried[name] - 1), default=None)
        if abs(off) <= RIGHT:
            said += "right." if mine == truth else f"right, to within {_percent(abs(off))}."
        else:
            said += f"{_percent(off)} too much." if off > 0 else f"{_percent(-off)} too little."
            if slip is not None and abs(mine / tried[slip] - 1) <= SLIP:
                said += f" It looks like a usual slip: {slip}."
        print(said)

    def _shown(self, truth: float) -> str:
        number = truth / UNITS.get(self.unit, 1)
        whole = number == int(number) and (self.unit == "B" or self.unit == "count")
        digits = 0 if whole or number >= 1000 else 1 if number >= 100 else 2 if number >= 1 else 4
        return self._with_unit(f"{number:,.{digits}f}")

    def _with_unit(self, number: str) -> str:
        return f"{number} {self.unit}" if self.unit in UNITS else f"{number}{SIGNS[self.unit]}"


def guess(value: float, unit: str) -> Guess:
    """A reader's guess, to be edited: ``guess(50, "GB")``, ``guess(27, "ratio")``. Raises ValueError."""
    return Guess(value, unit)


def _check_positive(name: str, value) -> None:
    if isinstance(value, bool) or not isinstance(value, Real) or not isfinite(value) or value <= 0:
        raise ValueError(f"{name} is {value!r}; it must be a number above 0")


def _percent(share: float) -> str:
    return f"{share:,.0%}" if share >= 0.1 else f"{share:.1%}"
