"""Asking an answer about optimizers: no optimizer can be built meanwhile, and none of torch's or the course's answers.

ask(function, *args)             what it gives, with the book closed
fields(got, names, what)         a tuple of tensors, one for each name
"""

from __future__ import annotations

from collections.abc import Callable

import bitsandbytes.functional as bnb
from torch import Tensor

from minigpt.checks.calling import explained
from minigpt.checks.closing import by_hand, knows
from minigpt.checks.comparing import show
from minigpt.checks.four_bits import asking
from minigpt.checks.verdict import Wrong
from minigpt.optim import adam, blockwise

OPTIMIZERS = (  # what knows Adam's formula or the map, besides the checks
    adam.adam_step, adam.adam_direction, blockwise.quantize, blockwise.dequantize, blockwise.dynamic_map,
    blockwise.linear_map, blockwise.table, bnb.create_dynamic_map, bnb.create_linear_map,
)  # fmt: skip
knows(__name__, *OPTIMIZERS)


def ask(function: Callable, *args):
    """What ``function(*args)`` gives, silenced, twice and with the book closed; an error may have a hint."""
    try:
        return by_hand(function, *args, guards=("no_optimizers",))
    except Wrong as verdict:
        raise explained(verdict, asking.HINTS) from verdict.__cause__


def fields(got, names: tuple[str, ...], what: str) -> dict[str, Tensor]:
    """The tensors of a tuple, by name."""
    if not isinstance(got, (tuple, list)) or len(got) != len(names):
        raise Wrong("no-tuple", f"{what}: it returns {show(got)}; ({', '.join(names)}) are asked for")
    return {name: asking.tensor(part, f"{what}: {name}") for name, part in zip(names, got)}
