"""A skyline: address by time. Each block is a rectangle, as tall as it is large and as long as it lives.

Addresses have gaps between segments, which mean nothing; segments are drawn one above the other, the small pool's at
the bottom, each on a ground of its own for as long as it is reserved. What of the ground is seen is reserved and free.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from math import log10

from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.patches import Patch

from minigpt.memory.buckets import BUCKETS
from minigpt.memory.plots import style
from minigpt.memory.plots.described import say
from minigpt.memory.plots.replayed import Held, Replay, Taken
from minigpt.memory.units import MIB

GROUND = "#DDE3EA"
APART = 0.12  # of the height goes to gaps between segments, at most
FEW = 1000  # with fewer blocks than these, each has an edge


def skyline(replay: Replay, title: str, *, first: int = 0, last: int | None = None, axes: Axes | None = None) -> Axes:
    """The allocator's events ``first`` to ``last`` (None: the end) of a run, addresses in MiB.

    Raises ValueError where nothing was reserved meanwhile.
    """
    last = replay.allocator.event if last is None else last
    floors, top = lanes(replay.segments, first, last)
    if not floors:
        raise ValueError(f"first is {first} and last {last}; nothing is reserved between them")
    if axes is None:
        axes = style.new_axes(9, 5)
    grounds = [segment for segment in replay.segments if alive(segment, first, last)]
    blocks = [block for block in replay.held if alive(block, first, last)]
    _draw(axes, [box(s, floors[s.room], first, last) for s in grounds], facecolor=GROUND, linewidth=0)
    edge = {"edgecolor": "white", "linewidth": 0.3} if len(blocks) < FEW else {"linewidth": 0}
    room = rooms_by_address(replay.segments)
    for bucket in BUCKETS:
        found = [box(b, floors[room(b.address)], first, last) for b in blocks if b.bucket == bucket]
        _draw(axes, found, facecolor=style.COLORS[bucket], **edge)
    axes.set_xlim(first, max(last, first + 1))
    axes.set_ylim(0, 1.06 * top)
    bar = _scale(axes, top)
    _name_phases(axes, replay.marks, first, last, 1.02 * top)
    ground = Patch(facecolor=GROUND, label="reserved, free")
    present = {block.bucket for block in blocks}
    style.legend_beside(axes, [*(style.swatch(bucket) for bucket in BUCKETS if bucket in present), ground])
    label = f"segments, one above the other (the bar: {bar:,} MiB)"
    style.finish(axes, title, "allocations and frees, in order (not in seconds)", label)
    statistics = replay.allocator.statistics
    peaks = [f"{counter.peak / MIB:,.0f} MiB" for counter in (statistics.allocated, statistics.reserved)]
    told = f"{len(floors)} segments, and {len(blocks):,} blocks in them, by address and time"
    say(axes, f"{told}; in the whole run at most {peaks[0]} allocated and {peaks[1]} reserved.")
    return axes


def alive(it: Held | Taken, first: int, last: int) -> bool:
    """Whether a block or a segment is there at some instant from ``first`` to ``last``."""
    return it.born <= last and (it.died is None or it.died > first)


def lanes(segments: Iterable[Taken], first: int, last: int) -> tuple[dict[int, tuple[float, int]], float]:
    """Where each segment is drawn: by its room, (floor in MiB, lowest address); and how high they reach."""
    rooms: dict[int, list[Taken]] = {}
    for segment in segments:
        if alive(segment, first, last):
            rooms.setdefault(segment.room, []).append(segment)
    ordered = sorted(rooms.items(), key=lambda room: (not room[1][0].small, min(part.born for part in room[1])))
    spans = [max(p.address + p.size for p in parts) - min(p.address for p in parts) for _, parts in ordered]
    gap = min(APART * sum(spans) / MIB / max(len(spans), 1), 0.01 * sum(spans) / MIB)
    floors, height = {}, gap
    for (room, parts), span in zip(ordered, spans):
        floors[room] = height, min(part.address for part in parts)
        height += span / MIB + gap
    return floors, height


def rooms_by_address(segments: Iterable[Taken]) -> Callable[[int], int]:
    """A function that gives the room in which an address lies."""
    starts = sorted((segment.address, segment.room) for segment in segments)
    addresses = [address for address, _ in starts]
    return lambda address: starts[bisect_right(addresses, address) - 1][1]


def box(it: Held | Taken, floor: tuple[float, int], first: int, last: int) -> list[tuple[float, float]]:
    """The corners of its rectangle, in events and MiB; ``floor`` is its segment's, as ``lanes`` has it."""
    left, right = max(it.born, first), last if it.died is None else min(it.died, last)
    bottom = floor[0] + (it.address - floor[1]) / MIB
    top = bottom + it.size / MIB
    return [(left, bottom), (right, bottom), (right, top), (left, top)]


def _draw(axes: Axes, boxes: list, **look) -> None:
    if boxes:
        rectangles = axes.add_collection(PolyCollection(boxes, **look), autolim=False)
        rectangles.set_in_layout(False)  # there may be thousands


def _scale(axes: Axes, top: float) -> int:
    """A bar beside the axes in place of ticks, which gaps would make wrong: a round number of MiB, which it returns."""
    power = 10 ** int(log10(top / 4))
    bar = next(n * power for n in (5, 2, 1) if n * power <= top / 4)
    axes.set_yticks([])
    axes.yaxis.labelpad = 16
    axes.plot([-0.012] * 2, [0, bar], color="black", linewidth=3, transform=axes.get_yaxis_transform(), clip_on=False)
    return bar


def _name_phases(axes: Axes, marks: list[tuple[str, int]], first: int, last: int, height: float) -> None:
    """A dotted line where a phase begins, and its name where there is room for it."""
    ends = [at for _, at in marks[1:]] + [last]
    for (name, at), end in zip(marks, ends):
        at, end = max(at, first), min(end, last)
        if at >= end:
            continue
        if at > first:
            axes.axvline(at, color="black", linewidth=0.8, linestyle=":", zorder=3)
        if end - at > 0.06 * (last - first):
            axes.text((at + end) / 2, height, name, ha="center", fontsize=10)
