"""The requests of a training run on a card, as plain events: the births and deaths of the tape's storages.

    training(model, plan)                 # loading, a first step and a steady one: [Event("born", 0, 131072), ...]
    steps(model, plan, [64, 96])          # the same with a length for each step, and a list for each

A storage is asked for when it is born and freed when it dies. In ``steps`` gradients, batch and loss die when the next
step begins, and cuBLAS's workspaces are there from the start.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import count

from minigpt.checks.probes.allocating import Event
from minigpt.memory.engine.graph import BORN, DEAD, OPTIMIZER, Record
from minigpt.memory.plan import TrainingPlan
from minigpt.memory.predicted.allocator import Allocator, Block, Device, Options, OutOfMemoryError
from minigpt.memory.predicted.reserved import history
from minigpt.memory.predicted.run import run


def training(model, plan: TrainingPlan) -> list[Event]:
    """Loading, a first step and one more, on ``plan.card``: what ``predict`` plays through that card's allocator."""
    keys: dict[Record, int] = {}
    told = []
    for _, record, what in history(model, plan).tape.events:
        if record.nbytes and what in (BORN, DEAD):
            told.append(Event("born" if what == BORN else "died", keys.setdefault(record, len(keys)), record.nbytes))
    return told


def steps(model, plan: TrainingPlan, lengths: Sequence[int]) -> list[list[Event]]:
    """The events of one step for each of ``lengths`` (tokens per sequence); the first one has those of loading too."""
    keys: dict[Record, int] = {}
    left: list[Record] = []  # what the last step left to the next
    told: list[list[Event]] = []
    number = count()
    for length in lengths:
        first = not told
        events = [Event("died", keys[record], record.nbytes) for record in left]
        left = []
        for phase, record, what in requests(model, replace(plan, seq_len=length, step="first" if first else "steady")):
            stays = phase == "before" and record.born[2] != "batch"
            if stays and not first:  # it is there since the first step
                continue
            if what == BORN:
                keys[record] = next(number)
                events.append(Event("born", keys[record], record.nbytes))
                if not stays and record.bucket != OPTIMIZER:
                    left.append(record)
            elif record in left:
                left.remove(record)
                events.append(Event("died", keys[record], record.nbytes))
        told.append(events)
    return told


@lru_cache(maxsize=64)
def requests(model, plan: TrainingPlan) -> list[tuple[str, Record, int]]:
    """(phase, storage, BORN or DEAD) in order, of all that have bytes."""

    def finish(tape, frozen):
        return [event for event in tape.events if event[1].nbytes and event[2] in (BORN, DEAD)]

    return run(model, plan, finish)


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
