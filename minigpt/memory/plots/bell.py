"""The bell curve of normal weights, cut into areas with a value in the middle of each: where NF4's code comes from."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist

from matplotlib.axes import Axes

from minigpt.memory.plots import style
from minigpt.memory.plots.described import say

NORMAL = NormalDist()
END = 2.8  # standard deviations, to either side: as far as the curve is drawn


def areas(values: Sequence[float]) -> list[tuple[float, float, float]]:
    """(from, to, share of all weights) around each of ``values``, which rise and are in standard deviations.

    Two neighbours' areas meet halfway between them in *probability*, so that a value has half of its area on either
    side; the outermost two reach to infinity. Rounding to the nearest value meets halfway in value instead.
    """
    places = [NORMAL.cdf(value) for value in values]
    cuts = [(a + b) / 2 for a, b in zip(places, places[1:])]
    ends = [-float("inf"), *map(NORMAL.inv_cdf, cuts), float("inf")]
    shares = [b - a for a, b in zip([0.0, *cuts], [*cuts, 1.0])]
    return list(zip(ends, ends[1:], shares))


def bell(values: Sequence[float], title: str, *, labels: Sequence[str] | None = None, axes: Axes | None = None) -> Axes:
    """The density of the normal distribution in areas around ``values``, each value on a line with its label under it.

    ``values`` rise, in standard deviations. ``labels`` are the values themselves where none are given: for NF4 give
    ``[f"{v:.2f}" for v in code]`` with ``[v * outermost for v in code]``. Raises ValueError where values do not rise,
    or labels are more or fewer.
    """
    labels = [f"{value:.2f}" for value in values] if labels is None else labels
    if not values or any(a >= b for a, b in zip(values, values[1:])):
        raise ValueError(f"values is {list(values)}; it must hold rising numbers, at least one")
    if len(labels) != len(values):
        raise ValueError(f"labels has {len(labels)} words; it must have one for each of {len(values)} values")
    if axes is None:
        axes = style.new_axes(9, 3.6)
    found = areas(values)
    for i, (value, label, (left, right, _)) in enumerate(zip(values, labels, found)):
        grid, density = _curve(max(left, -END), min(right, END))
        axes.fill_between(grid, density, color=style.METHODS["nf4"], alpha=(0.28, 0.55)[i % 2], linewidth=0)
        axes.plot([value, value], [0, NORMAL.pdf(value)], color="black", linewidth=1)
        axes.annotate(label.replace("-", "−"), (value, 0), xytext=(0, -4), textcoords="offset points", rotation=90,
                      ha="center", va="top", fontsize=8, annotation_clip=False)  # fmt: skip
    axes.plot(*_curve(-END, END), color="black", linewidth=1.5)
    axes.set_xlim(-END, END)
    axes.set_ylim(0, 1.08 * NORMAL.pdf(0))
    axes.tick_params(axis="x", pad=34, length=0)
    style.finish(axes, title, "weight (standard deviations)", "density (per standard deviation)")
    told = ", ".join(f"{label} has {share:.1%}" for label, (_, _, share) in zip(labels, found))
    say(axes, f"A bell curve cut into {len(values)} areas, each around one value: {told}.")
    return axes


def _curve(left: float, right: float) -> tuple[list[float], list[float]]:
    grid = [left + (right - left) * k / 200 for k in range(201)]
    return grid, [NORMAL.pdf(x) for x in grid]
