"""Probes: what is done with an object that a student's code makes, where it lives; a plain record of it comes back.

    @probe
    def lora(cls, base, ...): ...          a function of a module of this package, which returns plain values

    said = layers.lora(LoRALinear, ...)    in a judge: runs here, or where ``LoRALinear`` lives

A probe holds no truth and imports no judge; it is asked for with plain inputs, and for several things in one go, as an
object cannot travel. What one of its steps raises may stand in the record as a ``Wrong`` in the place of a value
(``tried``), so that the judge decides when that counts.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import update_wrapper
from typing import Any

from minigpt.checks import answers, closing
from minigpt.checks.calling import call, name_of
from minigpt.checks.closing import by_hand
from minigpt.checks.verdict import Wrong

_probing: list[int] = []  # of each probe that runs, how many answers run with it


class Probe:
    """A function that is called where its arguments live, silenced, and with the book closed unless it is ``open``."""

    def __init__(self, function: Callable, open: bool = False) -> None:
        self.function, self.open = function, open
        update_wrapper(self, function)

    def by_name(self) -> tuple[str, str]:
        return "probe", f"{self.function.__module__.rpartition('.')[2]}.{self.function.__name__}"

    def __call__(self, *args, **kwargs):
        away = answers.sent("probe", self, args, kwargs)
        if away:
            return away()

        def run():
            _probing.append(len(closing._running))
            try:
                return self.function(*args, **kwargs)
            finally:
                _probing.pop()

        run.__name__ = name_of(args[0]) if args else "the answer"
        options: dict[str, Any] = dict(twice=False, untouched=False, none_ok=True)
        return call(run, **options) if self.open else by_hand(run, building=True, **options)


def probe(function: Callable) -> Probe:
    """A probe of this function."""
    return Probe(function)


def open_probe(function: Callable) -> Probe:
    """A probe of this function, for answers that are made of what a closed book would refuse."""
    return Probe(function, open=True)


def is_probing() -> bool:
    """Whether a probe asks, and no answer that it calls."""
    return bool(_probing) and _probing[-1] == len(closing._running)


def named(name: str) -> Probe:
    """The probe that is sent as ``name``. Raises ValueError where there is none."""
    module, _, function = name.partition(".")
    found = getattr(importlib.import_module(f"{__name__}.{module}"), function, None) if module.isidentifier() else None
    if not isinstance(found, Probe):
        raise ValueError(f"there is no probe {name!r}")
    return found


def tried(step: Callable, *args, **options):
    """What ``step(*args)`` gives, or the Wrong that it earned: without the frames that it came through."""
    try:
        return step(*args, **options)
    except Wrong as verdict:
        bare = Wrong(verdict.id, str(verdict))
        bare.__cause__ = verdict.__cause__
        return bare


def unless_wrong(value):
    """In a judge: ``value``, if it is one. Raises the Wrong that stands in its place."""
    if isinstance(value, Wrong):
        raise value
    return value
