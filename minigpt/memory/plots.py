"""Two pictures: where the bytes are (stacked bars), and when (the timeline of one step).

Each bucket has one colour, here, in every notebook and in the report. Titles state a finding, so the caller
gives them. Sizes are in GB (1e9) or MB (1e6), whichever suits the largest bar.
"""

from __future__ import annotations

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from minigpt.memory.buckets import BUCKETS, Ledger, StepMemory
from minigpt.memory.units import GB, KB, MB

# Okabe and Ito's palette: apart from each other for colour-blind readers, and in grey print.
COLORS = {
    "weights": "#0072B2",
    "gradients": "#E69F00",
    "optimizer": "#009E73",
    "activations": "#CC79A7",
    "temporary": "#999999",
}


def stacked_bars(
    cases: dict[str, Ledger], title: str, *, limits: dict[str, int] | None = None, axes: Axes | None = None
) -> Axes:
    """One horizontal bar a case, its buckets side by side; ``limits`` draws named vertical lines (bytes).

    A bar with "measured" in its name is hatched, so that predicted and measured can be told apart.
    """
    if not cases:
        raise ValueError("cases is empty; it must map at least one label to a Ledger")
    unit, divisor = _unit(max([ledger.total for ledger in cases.values()] + list((limits or {}).values())))
    if axes is None:
        _, axes = plt.subplots(figsize=(8, max(2.1, 1.3 + 0.45 * len(cases))), layout="constrained")
    for row, (label, ledger) in enumerate(cases.items()):
        left = 0.0
        for bucket in BUCKETS:
            width = getattr(ledger, bucket) / divisor
            if not width:  # a bar without width would take away the margin on the right
                continue
            hatch = "///" if "measured" in label else None
            axes.barh(row, width, left=left, color=COLORS[bucket], edgecolor="white", hatch=hatch, linewidth=0.5)
            left += width
        axes.annotate(
            f"{_number(left)} {unit}", (left, row), xytext=(5, 0), textcoords="offset points", va="center", fontsize=9,
            bbox=dict(facecolor="white", edgecolor="none", pad=0.8),  # keeps the number off a limit's line
        )  # fmt: skip
    for name, nbytes in (limits or {}).items():
        axes.axvline(nbytes / divisor, color="black", linestyle="--", linewidth=1, zorder=1.5)
        at_top = axes.get_xaxis_transform()
        axes.text(nbytes / divisor, 1.02, name, fontsize=8, va="bottom", ha="center", transform=at_top)
    axes.set_yticks(range(len(cases)), list(cases))
    axes.invert_yaxis()
    axes.set_xlabel(f"memory ({unit})")
    axes.set_title(title, loc="left", fontsize=11, wrap=True, pad=20 if limits else 6)
    axes.set_xlim(0, 1.17 * max(axes.dataLim.x1, *(n / divisor for n in (limits or {"": 0}).values())))
    seen = max(ledger.total for ledger in cases.values()) / 1000  # less than that is no visible width
    _legend(axes, [b for b in BUCKETS if any(getattr(ledger, b) > seen for ledger in cases.values())])
    axes.spines[["top", "right"]].set_visible(False)
    return axes


def timeline(step: StepMemory, title: str, *, axes: Axes | None = None) -> Axes:
    """The buckets after every allocation and release of one step, with its phases and its peak marked."""
    points = step.timeline()
    if not points:
        raise ValueError("step has no events inside a phase; meter it with marks, or take it from predict()")
    unit, divisor = _unit(step.peak.total)
    if axes is None:
        _, axes = plt.subplots(figsize=(9, 3.8), layout="constrained")
    series = [[getattr(ledger, bucket) / divisor for _, ledger in points] for bucket in BUCKETS]
    axes.stackplot(range(len(points)), series, colors=[COLORS[bucket] for bucket in BUCKETS], step="post", linewidth=0)
    phases = [phase for phase, _ in points]
    edges = [0] + [i for i in range(1, len(phases)) if phases[i] != phases[i - 1]] + [len(phases)]
    top = step.peak.total / divisor
    for start, end in zip(edges, edges[1:], strict=False):
        if start:
            axes.axvline(start, color="black", linewidth=0.8, linestyle=":")
        axes.text((start + end) / 2, top * 1.12, phases[start], ha="center", fontsize=10)
    peak = max(range(len(points)), key=lambda i: points[i][1].total)
    axes.plot(peak, top, "v", color="black", markersize=6)
    axes.annotate(
        f"peak {_number(top)} {unit}", (peak, top), xytext=(6 if peak < 0.8 * len(points) else -6, 3),
        textcoords="offset points", fontsize=9, ha="left" if peak < 0.8 * len(points) else "right",
    )  # fmt: skip
    axes.set_ylim(0, top * 1.22)
    axes.set_xlim(0, len(points) - 1)
    axes.set_xlabel("allocations and releases, in order")
    axes.set_ylabel(f"memory ({unit})")
    axes.set_title(title, loc="left", fontsize=11, wrap=True)
    _legend(axes, BUCKETS)
    axes.spines[["top", "right"]].set_visible(False)
    return axes


def _legend(axes: Axes, buckets) -> None:
    handles = [plt.Rectangle((0, 0), 1, 1, color=COLORS[bucket]) for bucket in buckets]
    axes.legend(handles, buckets, loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False, fontsize=9)


def _unit(nbytes: int) -> tuple[str, int]:
    for unit, divisor in (("GB", GB), ("MB", MB)):
        if nbytes >= divisor:
            return unit, divisor
    return "kB", KB


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
