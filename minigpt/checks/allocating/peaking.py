"""Judging the peaks of a run: the truth is the course's allocator, fed with the tape's events.

peaks_of(peaks, (model, plan), only)      ``peaks(events)``: {"allocated": bytes, "reserved": bytes}
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from minigpt.checks.allocating import asking, running  # noqa: F401  closes the book
from minigpt.checks.closing import by_hand, knows
from minigpt.checks.comparing import buckets
from minigpt.checks.naming import Hints
from minigpt.checks.probes.allocating import Event
from minigpt.memory.predicted.allocator import Options

knows(__name__)


def peaks_of(peaks: Callable, case: tuple, only: str) -> None:
    """``only``: "allocated" or "reserved", of which this part is."""
    events = running.training(*case)
    mine = by_hand(peaks, events, twice=False)
    statistics = running.replay(events).statistics
    truth = {"allocated": statistics.allocated.peak, "reserved": statistics.reserved.peak}
    buckets(mine, truth, f"{len(events):,} events", wrong=peak_mistakes(events, statistics), only=[only])


def peak_mistakes(events: Sequence[Event], statistics) -> dict[str, Hints]:
    """What each mistake gives."""
    options = Options()
    born = [event.nbytes for event in events if event.action == "born"]
    unfreed = running.replay(event for event in events if event.action == "born").statistics
    segments = sum(options.segment_size(options.round(nbytes)) for nbytes in born)
    return {
        "allocated": {
            "requested": ("that is what was asked for; whole blocks count, with what was rounded up and not split off",
                          statistics.requested.peak),
            "rounded": ("that is the rounded requests; whole blocks count, with what was not split off",
                        most(events, options.round)),
            "at-the-end": ("that is what is allocated at the end; the largest at any instant is asked for",
                           statistics.allocated.current),
            "never-freed": ("nothing is freed", unfreed.allocated.peak),
        },
        "reserved": {
            "never-freed": ("nothing is freed", unfreed.reserved.peak),
            "a-segment-each": ("a segment is counted for each request; most find a free block", segments),
            "segments-in-use": ("the segments are summed as if each request had its own while it lives",
                                most(events, lambda nbytes: options.segment_size(options.round(nbytes)))),
            "rounded-to-segments": ("that is allocated, rounded up to 2 MiB; follow the segments one by one",
                                    -(-statistics.allocated.peak // (2 << 20)) * (2 << 20)),
        },
    }  # fmt: skip


def most(events: Sequence[Event], size: Callable[[int], int]) -> int:
    """The largest sum of ``size(nbytes)`` over what is alive."""
    now = top = 0
    for event in events:
        now += size(event.nbytes) if event.action == "born" else -size(event.nbytes)
        top = max(top, now)
    return top
