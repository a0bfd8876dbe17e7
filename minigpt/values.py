"""What a value may be: one rule for each kind of argument, with one wording. A bool is no number here.

Left out: ranges that one place alone has; those stay there. This file imports no torch.
"""

from __future__ import annotations


def is_number(value) -> bool:
    """Whether ``value`` is an int or a float; NaN and infinity are for the caller's range to refuse."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def check_counts(least: int = 1, most: int = 2**63 - 1, **counts) -> None:
    """Raise ValueError, with the name, unless every value is an integer from ``least`` to ``most``."""
    for name, value in counts.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"{name} is {value!r}; it must be an integer of at least {least}")
        if value > most:
            raise ValueError(f"{name} is {value!r}; it must be at most {most:,}")


def check_flags(**flags) -> None:
    """Raise ValueError, with the name, unless every value is True or False."""
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise ValueError(f"{name} is {value!r}; it must be True or False")


def check_shares(**shares) -> None:
    """Raise ValueError, with the name, unless every value is a number from 0 to 1."""
    for name, value in shares.items():
        if not is_number(value) or not 0 <= value <= 1:
            raise ValueError(f"{name} is {value!r}; it must be a number from 0 to 1")


def check_choice(allowed, **choices) -> None:
    """Raise ValueError, with the name, unless every value is one of the ``allowed`` texts."""
    for name, value in choices.items():
        if not isinstance(value, str) or value not in allowed:
            raise ValueError(f"{name} is {value!r}; allowed: {', '.join(allowed)}")
