"""The requests of a training run on a card, as plain events: the births and deaths of the tape's storages.

    training(model, plan)                 # loading, a first step and a steady one: [Event("born", 0, 131072), ...]
    steps(model, plan, [64, 96])          # the same with a length for each step, and a list for each

They are ``predicted.training``'s: a storage is asked for when it is born and freed when it dies.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from minigpt.checks.probes.allocating import Event
from minigpt.memory.engine.graph import BORN, DEAD, Record
from minigpt.memory.plan import TrainingPlan
from minigpt.memory.predicted.allocator import Allocator, Block, Device, Options, OutOfMemoryError
from minigpt.memory.predicted.training import Training


def training(model, plan: TrainingPlan) -> list[Event]:
    """Loading, a first step and one more, on ``plan.card``: what ``predict`` plays through that card's allocator."""
    return [event for step in steps(model, plan, [plan.seq_len] * 2) for event in step]


def steps(model, plan: TrainingPlan, lengths: Sequence[int]) -> list[list[Event]]:
    """The events of one step for each of ``lengths`` (tokens per sequence); the first one has those of loading too."""
    return _steps(model, plan, tuple(lengths))


@lru_cache(maxsize=16)
def _steps(model, plan: TrainingPlan, lengths: tuple[int, ...]) -> list[list[Event]]:
    run, keys = Training(model, plan), dict[Record, int]()
    told: list[list[Event]] = []
    began = 0
    for length in lengths:
        run.step(length)
        told.append([])
        for _, record, what in run.tape.events[began:]:
            if record.nbytes and what in (BORN, DEAD):
                action, key = "born" if what == BORN else "died", keys.setdefault(record, len(keys))
                told[-1].append(Event(action, key, record.nbytes))
        began = len(run.tape.events)
    return told


def replay(
    events: Iterable[Event], allocator: Allocator | None = None, live: dict[int, Block] | None = None
) -> Allocator:
    """The allocator (a new one), after these events. Raises ``OutOfMemoryError``."""
    allocator, live = allocator or Allocator(), {} if live is None else live
    for action, key, nbytes in events:
        if action == "born":
            live[key] = allocator.allocate(nbytes)
        else:
            allocator.free(live.pop(key))
    return allocator


def run_on(model, plan: TrainingPlan, told: Sequence[int | str], capacity: int | None, options: str = "") -> str:
    """A run on a card with ``capacity`` bytes: "" if it goes through, else torch's sentence.

    ``told`` has the tokens per sequence of each step, and "empty_cache" where that is called between two steps.
    ``options`` is what ``PYTORCH_ALLOC_CONF`` says. Raises ValueError for anything else.
    """
    if odd := [each for each in told if not isinstance(each, int) and each != "empty_cache"]:
        raise ValueError(f"told has {odd[0]!r}; a step is its length, an int, and else there is only 'empty_cache'")
    allocator, live = Allocator(Options.parse(options), Device(capacity)), dict[int, Block]()
    each = iter(steps(model, plan, [length for length in told if isinstance(length, int)]))
    try:
        for what in told:
            if what == "empty_cache":
                allocator.empty_cache()
            else:
                replay(next(each), allocator, live)
    except OutOfMemoryError as error:
        return str(error)
    return ""
