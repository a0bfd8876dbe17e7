"""Predicted beside recorded: a plan's training on the tape, and the recording of one.

The tape is told from loading on, over as many steps as the recording can have; its requests are laid beside the
recorded ones (``placing``), and the allocator's counters run over what they share. So what is reserved is that of a
process that has done nothing else. What was assumed is said, and so is where the two part.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

from minigpt.memory.engine.account import Account
from minigpt.memory.engine.graph import BORN, DEAD, Record
from minigpt.memory.plan import TrainingPlan
from minigpt.memory.predicted.allocator import Allocator, Options
from minigpt.memory.predicted.reserved import History, history, replay
from minigpt.memory.snapshot.placing import Place, find
from minigpt.memory.snapshot.recording import Recording, Request
from minigpt.memory.snapshot.requests import Requests, recorded, told

STEPS = 12  # no more are told; a steady one is as the other


@dataclass(frozen=True)
class Against:
    """Predicted beside recorded; pairs are (predicted, recorded), in bytes.

    ``place``: how the recording was laid beside the tape, in ``part`` ("loading", "step 2") from its request ``number``
    on. ``held``: before the first compared request. ``compared``: how many of the ``requests`` were. ``parting``: the
    first that differs, counted as the recording counts, from 0; None without one. ``asked``: what the tape and the
    recording ask for there. ``differs``: its "size", or what was "let go" before it.
    """

    place: Place
    part: str
    number: int
    held: tuple[int, int]
    allocated: tuple[int, int]
    reserved: tuple[int, int]
    requests: int
    compared: int
    parting: int | None
    asked: tuple[Record | None, Request | None]
    differs: str


def compare(recording: Recording, model, plan: TrainingPlan) -> Against:
    """Lay a recording beside what ``plan`` predicts of ``model``.

    Raises ValueError without a card, for a recording without a request, and as ``predict`` does.
    """
    events = [(event.action, event.request.address, event.request.nbytes) for event in recording.events]
    held = [(request.address, request.nbytes) for request in recording.held]
    theirs = recorded(held, events)
    if not theirs.sizes:
        raise ValueError("the recording has no request; there is nothing to compare")
    past, ours = _told(model, plan, len(theirs.sizes))
    live, before = _live(past.tape), [size for size, _ in recording.sizes()]
    starts = [n for n in (_first(ours, begun) for begun in past.parts) if n < len(ours.sizes)]

    def apart(skipped: int, number: int) -> int:
        return abs(live[ours.places[number]] - before[theirs.places[skipped]])

    place = find(theirs.sizes, ours.sizes, starts, apart)
    first, theirs_first = ours.places[place.number], theirs.places[place.skipped]
    compared = min(len(theirs.sizes) - place.skipped, len(ours.sizes) - place.number)
    mine, others = told(past.tape, first), recorded(held, events, theirs_first)
    mine.freed[0] = others.freed[0]  # where between two requests the recording began, nobody knows
    parting = _shortened(mine, compared).parting(_shortened(others, compared))
    last = ours.places[place.number + compared - 1] + 1
    began = _back(past.tape, first, sum(recorded(held, events[:theirs_first]).freed[0].values()))
    allocated, reserved = _peaks(past.tape, began, last, Options(expandable_segments=recording.pages))
    part = max(i for i, begun in enumerate(past.parts) if begun <= first)
    asked: tuple[Record | None, Request | None] = (None, None)
    differs = ""
    if parting is not None:
        asked = (past.tape.events[mine.places[parting]][1], recording.events[others.places[parting]].request)
        differs = "size" if mine.sizes[parting] != others.sizes[parting] else "let go"
    sizes = list(recording.sizes())
    return Against(
        place,
        f"step {part}" if part else "loading",
        place.number - _first(ours, past.parts[part]),
        (live[first], before[theirs_first]),
        (allocated, max(size for size, _ in sizes)),
        (reserved, max(size for _, size in sizes)),
        len(theirs.sizes),
        compared,
        None if parting is None else parting + place.skipped,
        asked,
        differs,
    )


def _told(model, plan: TrainingPlan, needed: int) -> tuple[History, Requests]:
    """The training, with so many requests after the beginning of its second step, or over ``STEPS`` steps."""
    past = history(model, plan, 3)
    ours = told(past.tape)
    each = len(ours.sizes) - _first(ours, past.parts[-1])
    if plan.step == "first" or needed <= each:
        return past, ours
    past = history(model, plan, min(STEPS, 3 + -(-needed // each)))
    return past, told(past.tape)


def _first(requests: Requests, event: int) -> int:
    """The number of the first request from an event on."""
    return sum(place < event for place in requests.places)


def _shortened(requests: Requests, count: int) -> Requests:
    return Requests(requests.sizes[:count], requests.freed[: count + 1], requests.places[:count])


def _live(tape: Account) -> list[int]:
    """Bytes held before each event, in multiples of 512."""
    signs = {BORN: 1, DEAD: -1}
    changes = (signs.get(kind, 0) * (-(-record.nbytes // 512) * 512) for _, record, kind in tape.events)
    return list(accumulate(changes, initial=0))


def _back(tape: Account, event: int, frees: int) -> int:
    """The event from which on so many blocks are let go before this one, if so many are in a row."""
    while frees and event and tape.events[event - 1][2] != BORN:
        event -= 1
        frees -= tape.events[event][2] == DEAD and tape.events[event][1].nbytes > 0
    return event


def _peaks(tape: Account, began: int, last: int, options: Options) -> tuple[int, int]:
    """Allocated and reserved bytes at most between two events, with everything before them replayed."""
    cut = Account()
    cut.events, cut.emptied = tape.events[:last], [count for count in tape.emptied if count < last]
    allocator = Allocator(options)
    replay(cut, allocator, began)
    return allocator.statistics.allocated.peak, allocator.statistics.reserved.peak
