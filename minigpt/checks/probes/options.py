"""Options that a student's function gives, for a library.

given(options, *args)      what ``options(*args)`` returns; a dictionary's sets, which peft takes for names, as lists
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from minigpt.checks.calling import call
from minigpt.checks.probes import open_probe


@open_probe
def given(options: Callable, *args):
    made = call(options, *args)
    if not isinstance(made, Mapping):
        return made
    return {name: sorted(value) if isinstance(value, (set, frozenset)) else value for name, value in made.items()}
