"""When the bytes are there: the buckets after every allocation and release of one step."""

from __future__ import annotations

from matplotlib.axes import Axes

from minigpt.memory.buckets import BUCKETS, Ledger, StepMemory
from minigpt.memory.plots import style
from minigpt.memory.plots.described import say

AROUND = 12  # events on either side of the peak that the inset shows
FEW = 8 * AROUND  # with no more events than these, nothing needs a magnifying glass


def timeline(step: StepMemory, title: str, *, inset: bool = True, axes: Axes | None = None) -> Axes:
    """One step from left to right, its phases named, the tip of a marker on its peak.

    ``inset`` adds, where nothing is drawn, a window on the events around the peak, which may be one event wide. Raises
    ValueError where ``step`` has no events.
    """
    points = step.timeline()
    if not points:
        raise ValueError("step has no events inside a phase; meter it with marks, or take it from predict()")
    unit, divisor = style.unit_of(step.peak.total)
    if axes is None:
        axes = style.new_axes(9, 3.8)
    ledgers = [ledger for _, ledger in points]
    _draw(axes, ledgers, divisor)
    top = step.peak.total / divisor
    phases = _name_phases(axes, [phase for phase, _ in points], 1.12 * top)
    peak = max(range(len(ledgers)), key=lambda i: ledgers[i].total)
    axes.set_ylim(0, 1.22 * top)
    axes.set_xlim(0, max(1, len(points) - 1))
    early = peak < 0.8 * len(points)
    axes.annotate(
        f"peak {style.number(top)} {unit}", (peak, top), xytext=(16 if early else -16, 12), textcoords="offset points",
        fontsize=9, va="center", ha="left" if early else "right", bbox=style.WHITE_BOX,
        arrowprops=dict(arrowstyle="-|>", color="black", shrinkA=0, shrinkB=0),
    )  # fmt: skip
    style.legend_beside(axes, [style.swatch(bucket) for bucket in BUCKETS])
    style.finish(axes, title, "allocations and releases, in order (not in seconds)", f"memory ({unit})")
    if inset and len(points) > FEW:
        _magnify(axes, ledgers, peak, divisor)
    parts = ", ".join(f"{b} {style.number(n / divisor)}" for b, n in step.peak.as_dict().items() if n >= divisor / 200)
    ends = "; ".join(f"{name} from {style.number(a.total / divisor)} to {style.number(b.total / divisor)}"
                     for name, a, b in ((name, ledgers[i], ledgers[j - 1]) for name, i, j in phases))  # fmt: skip
    say(axes, f"Memory in {unit}. {ends}. Peak {style.number(top)}, {step.peak_at}: {parts}.")
    return axes


def _draw(axes: Axes, ledgers: list[Ledger], divisor: int, start: int = 0) -> None:
    x = range(start, start + len(ledgers))
    series = [[getattr(ledger, bucket) / divisor for ledger in ledgers] for bucket in BUCKETS]
    axes.stackplot(x, series, colors=[style.COLORS[bucket] for bucket in BUCKETS], step="post", linewidth=0)
    # An instant is narrower than a pixel, and an area that narrow is not drawn; its outline is.
    axes.step(x, [ledger.total / divisor for ledger in ledgers], where="post", color="black", linewidth=0.6)


def _name_phases(axes: Axes, phases: list[str], height: float) -> list[tuple[str, int, int]]:
    """A dotted line between two phases, their names above; returns (phase, first event, event after the last)."""
    edges = [0, *(i for i in range(1, len(phases)) if phases[i] != phases[i - 1]), len(phases)]
    found = [(phases[start], start, end) for start, end in zip(edges, edges[1:], strict=False)]
    for name, start, end in found:
        if start:
            axes.axvline(start, color="black", linewidth=0.8, linestyle=":")
        narrow = end == len(phases) and end - start < 0.08 * len(phases)
        at, side = (end - 1, "right") if narrow else ((start + end) / 2, "center")  # centred, it would leave the axes
        axes.text(at, height, name, ha=side, fontsize=10)
    return found


def _magnify(axes: Axes, ledgers: list[Ledger], peak: int, divisor: int) -> None:
    """A window on the events around the peak, in the corner that is emptier."""
    first, last = max(0, peak - AROUND), min(len(ledgers), peak + AROUND + 1)
    near = ledgers[first:last]
    width = 0.26
    n = len(ledgers)
    sides = {0.03: ledgers[: int((width + 0.05) * n)], 0.97 - width: ledgers[int((0.95 - width) * n) :]}
    left, below = min(sides.items(), key=lambda side: max(ledger.total for ledger in side[1]))
    top = max(ledger.total for ledger in ledgers)
    floor = 0.06 + max(ledger.total for ledger in below) / (1.22 * top)
    if floor > 0.62:  # there is no room
        return
    window = axes.inset_axes((left, floor, width, 0.82 - floor))
    _draw(window, near, divisor, first)
    low = min(ledger.total for ledger in near)
    window.set_xlim(first, last - 1)
    window.set_ylim((low - 0.3 * (top - low)) / divisor, (top + 0.15 * (top - low)) / divisor)
    window.set_xticks([])
    window.tick_params(labelsize=7)
    window.set_title(f"{last - first} events around the peak", fontsize=8, pad=3, backgroundcolor="white")
