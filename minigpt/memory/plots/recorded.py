"""What a GPU's allocator recorded: allocated bytes by the lines that hold them at the peak, reserved above them."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from minigpt.memory.plots import style
from minigpt.memory.plots.described import say
from minigpt.memory.snapshot.holders import UNKNOWN, holders, line
from minigpt.memory.snapshot.recording import Recording

SHADES = ("#332288", "#88CCEE", "#DDCC77", "#882255", "#999933")  # apart from the colours of buckets
MOST = len(SHADES)


def recorded(recording: Recording, title: str = "", *, axes: Axes | None = None) -> Axes:
    """One recording from left to right: whose lines hold what, and the reserved bytes over all.

    Lines are those that hold most when most is allocated; the rest is grey. Without a ``title`` it states the finding.
    """
    sizes = list(recording.sizes())
    place = recording.peak(0)
    largest = [holder.line for holder in holders(recording.held_after(place)) if holder.line != UNKNOWN][:MOST]
    unit, divisor = style.unit_of(max(reserved for _, reserved in sizes))
    stacks = _stacks(recording, largest)
    axes = style.new_axes(9, 4.2) if axes is None else axes
    colors = [*SHADES[: len(largest)], style.COLORS["temporary"]]
    x = range(len(sizes))
    axes.stackplot(x, [[n / divisor for n in row] for row in stacks], colors=colors, step="post", linewidth=0)
    axes.step(x, [size / divisor for size, _ in sizes], where="post", color="black", linewidth=0.6)
    axes.step(x, [size / divisor for _, size in sizes], where="post", color="black", linewidth=1.4, linestyle="--")
    top, most = (max(size[which] for size in sizes) for which in (0, 1))
    axes.set_ylim(0, 1.1 * most / divisor)
    axes.set_xlim(0, max(1, len(sizes) - 1))
    entries: list = [Patch(color=color, label=name) for color, name in zip(colors, [*largest, "everything else"])]
    entries.append(Line2D([], [], color="black", linestyle="--", label="reserved"))
    axes.legend(
        handles=entries[::-1], fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2, frameon=False
    )
    found = f"{style.number(most / divisor)} {unit} were reserved for {style.number(top / divisor)} {unit} at the peak"
    style.finish(axes, title or found, "events of the allocator, in order (not in seconds)", f"memory ({unit})")
    say(axes, f"Recorded memory in {unit}. {found}. Most is held by {largest[0] if largest else 'no known line'}.")
    return axes


def _stacks(recording: Recording, largest: list[str]) -> list[list[int]]:
    """For each of ``largest``, then for the rest: the bytes held before the first event and after each."""
    places = {name: place for place, name in enumerate(largest)}
    totals, live = [0] * (len(largest) + 1), dict[int, tuple[int, int]]()
    rows: list[list[int]] = [[] for _ in totals]

    def hold(request) -> None:
        row = places.get(line(request.frames), len(largest))
        live[request.address] = row, request.takes
        totals[row] += request.takes

    for request in recording.held:
        hold(request)
    for event in (None, *recording.events):
        if event is not None and event.action == "alloc":
            hold(event.request)
        elif event is not None and event.action == "free_requested":
            row, nbytes = live.pop(event.request.address, (0, 0))
            totals[row] -= nbytes
        for listed, total in zip(rows, totals):
            listed.append(total)
    return rows
