"""What every picture shares: colours, units, titles, ticks, legends."""

from __future__ import annotations

import textwrap
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from matplotlib.transforms import ScaledTranslation

from minigpt.memory.units import GB, KB, MB

# Okabe and Ito's palette: apart from each other for colour-blind readers, and in grey print.
COLORS = {
    "weights": "#0072B2",
    "gradients": "#E69F00",
    "optimizer": "#009E73",
    "activations": "#CC79A7",
    "temporary": "#999999",
}
# Of methods and of codes, apart from the buckets' own. What is stored in NF4 has QLoRA's colour.
METHODS = {
    "qlora": "#D55E00",
    "rslora": "#1F78B4",
    "dora": "#6A3D9A",
    "lora": "#56B4E9",
    "full": "#000000",
    "galore": "#8C510A",
    "nf4": "#D55E00",
    "fp4": "#6A3D9A",
    "int": "#000000",
}
FROZEN: dict[str, Any] = dict(hatch="xxxx", edgecolor="white", linewidth=0)  # hatching means this, and nothing else
GUESS: dict[str, Any] = dict(
    marker="D", color="#FFD92F", markeredgecolor="black", markersize=7, linestyle="none", zorder=5
)
WHITE_BOX: dict[str, Any] = dict(facecolor="white", edgecolor="none", pad=0.8)


def method_color(name: str, other: str = "0.5") -> str:
    """The colour of the method or code that ``name`` mentions ("QLoRA, no preparation" has QLoRA's), else ``other``."""
    for method, color in METHODS.items():  # qlora before lora, which it contains
        if method in name.lower():
            return color
    return other


def new_axes(width: float, height: float) -> Axes:
    """Axes in a figure of their own, laid out so that nothing is cut off; ``width`` and ``height`` in inches."""
    return plt.subplots(figsize=(width, height), layout="constrained")[1]


def lay_out(axes: Axes) -> None:
    """Give everything its place, so that extents in pixels are known."""
    figure = axes.figure.canvas.figure
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)


def finish(axes: Axes, title: str, xlabel: str = "", ylabel: str = "", *, down: dict[str, float] | None = None) -> None:
    """The axes' names, no frame at the top and on the right, names over vertical lines (at ``down``), then the title.

    The title begins where the picture does, and takes as many lines as it needs. Call it when all else is drawn.
    """
    axes.set(xlabel=xlabel or axes.get_xlabel(), ylabel=ylabel or axes.get_ylabel())
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title("", loc="left")  # a title wider than the figure would squeeze the axes
    lay_out(axes)
    rows = _name_lines(axes, down or {})
    text = axes.set_title(title, loc="left", fontsize=11, pad=9 + 11 * rows if rows else 6)
    box, around, figure = axes.get_window_extent(), axes.get_tightbbox(for_layout_only=True), axes.figure
    left = min(box.x0, around.x0) if around else box.x0
    room, needed = (figure.bbox.x1 if len(figure.axes) == 1 else box.x1) - left - 4, text.get_window_extent().width
    shift = ScaledTranslation((left - box.x0) / figure.dpi, 0, figure.dpi_scale_trans)
    text.set_transform(text.get_transform() + shift)
    if needed > room:
        text.set_text(textwrap.fill(title, int(0.97 * len(title) * room / needed)))


def _name_lines(axes: Axes, at: dict[str, float]) -> int:
    """Names over the frame, each in the lowest row where it meets no other; returns how many rows there are."""
    ends: list[float] = []  # of each row, in pixels
    for name, x in sorted(at.items(), key=lambda pair: pair[1]):
        text = axes.annotate(name, (x, 1), xycoords=("data", "axes fraction"), xytext=(0, 3),
                             textcoords="offset points", fontsize=8, va="bottom", ha="center")  # fmt: skip
        box = text.get_window_extent()
        row = next((i for i, end in enumerate(ends) if end + 4 < box.x0), len(ends))
        ends[row : row + 1] = [box.x1]
        text.xyann = (0, 3 + 11 * row)
    return len(ends)


def plain_log(axes: Axes, x: list | None = None, y: list | None = None) -> None:
    """Plain numbers (0.1, not 10^-1) on logarithmic axes: at ``x`` and ``y``, else at 1, 2 and 5 of each decade."""
    for axis, wanted in ((axes.xaxis, x), (axes.yaxis, y)):
        if axis.get_scale() != "log":
            continue
        if wanted is None:
            axis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5)))
        else:
            axis.set_ticks(wanted)
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
        axis.set_minor_formatter(NullFormatter())
        axis.set_tick_params(which="minor", length=0)


def swatch(bucket: str) -> Patch:
    """A bucket's entry of a legend."""
    return Patch(color=COLORS[bucket], label=bucket)


def frozen_swatch() -> Patch:
    """The entry of frozen weights: the colour of weights, hatched."""
    return Patch(facecolor=COLORS["weights"], hatch="xxxx", edgecolor="white", label="frozen weights")


def guess_mark() -> Line2D:
    """The entry of a reader's guess."""
    return Line2D([], [], label="your guess", **GUESS)


def legend_beside(axes: Axes, handles) -> None:
    """A legend on the right of the axes, where it covers nothing."""
    axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False, fontsize=9)


def unit_of(nbytes: float) -> tuple[str, int]:
    """The largest decimal unit, and its bytes, that leaves a digit before the point."""
    for unit, divisor in (("GB", GB), ("MB", MB)):
        if nbytes >= divisor:
            return unit, divisor
    return "kB", KB


def number(value: float) -> str:
    """Three digits or more: '113', '13.5', '6.52'."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
