"""Where NF4's sixteen values come from: the bell curve of the weights, cut into sixteen areas, a value in each.

Between neighbouring values lies the same probability p on either side of zero, by p = (offset - 1/2) / 8 on the right
and / 7 on the left, where one value less is needed because zero is one. An area reaches half of that p to either side
of its value; the outermost two reach to infinity. Each holds about a sixteenth of all weights. Source:
``minigpt.nf4.derive_code``. A weight goes to the *nearest* value, so these areas are not where it is rounded to.
"""

from __future__ import annotations

from statistics import NormalDist

from matplotlib.axes import Axes

from minigpt.memory.plots import style
from minigpt.memory.plots.described import say
from minigpt.nf4 import derive_code

OFFSET = 0.9677083  # of derive_code
END = 2.7  # standard deviations, to either side


def areas(code: list[float], offset: float = OFFSET) -> list[tuple[float, float, float]]:
    """(from, to, share of the weights) of each value's area, in standard deviations: cut halfway in probability."""
    normal = NormalDist()
    places = [normal.cdf(value * normal.inv_cdf(offset)) for value in code]
    cuts = [0.0, *((a + b) / 2 for a, b in zip(places, places[1:])), 1.0]
    ends = [-float("inf"), *(normal.inv_cdf(cut) for cut in cuts[1:-1]), float("inf")]
    return [(ends[i], ends[i + 1], cuts[i + 1] - cuts[i]) for i in range(len(code))]


def bell(title: str, *, axes: Axes | None = None) -> Axes:
    """The density of the normal distribution, its sixteen areas in two shades, and under them the values of NF4."""
    if axes is None:
        axes = style.new_axes(9, 4.2)
    normal, code = NormalDist(), derive_code()
    largest = normal.inv_cdf(OFFSET)
    found = areas(code)
    for i, (value, (left, right, _)) in enumerate(zip(code, found)):
        left, right = max(left, -END), min(right, END)
        grid = [left + (right - left) * k / 40 for k in range(41)]
        axes.fill_between(grid, [normal.pdf(x) for x in grid], color=style.METHODS["nf4"], alpha=(0.28, 0.55)[i % 2],
                          linewidth=0)  # fmt: skip
        x = value * largest
        axes.plot([x, x], [0, normal.pdf(x)], color="black", linewidth=1)
        axes.annotate(f"{value:.2f}".replace("-", "−"), (x, 0), xytext=(0, -4), textcoords="offset points",
                      rotation=90, ha="center", va="top", fontsize=8, annotation_clip=False)  # fmt: skip
    grid = [-END + 2 * END * k / 300 for k in range(301)]
    axes.plot(grid, [normal.pdf(x) for x in grid], color="black", linewidth=1.5)
    axes.set_xlim(-END, END)
    axes.set_ylim(0, 0.44)
    axes.tick_params(axis="x", pad=34, length=0)
    style.finish(axes, title, "weight (standard deviations); under the curve: the values of NF4 (weight / absmax)",
                 "density (per standard deviation)")  # fmt: skip
    told = ", ".join(f"{value:.2f} holds {share:.1%}" for value, (_, _, share) in zip(code, found))
    say(axes, f"A bell curve cut into {len(code)} areas, each around one value of NF4: {told}.")
    return axes
