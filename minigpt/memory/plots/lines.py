"""What changes with what: lines over rank, tokens or time, and the losses of several runs in one picture."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from minigpt.guess import Guess
from minigpt.memory.plots import style
from minigpt.memory.plots.described import say
from minigpt.memory.plots.labels import name_levels

STYLES = (("-", "o"), ("--", "s"), (":", "^"), ("-.", "D"))  # of lines that share a colour
MANY = 24  # points: with more, they are not marked


def lines(
    series: dict[str, tuple[Sequence[float], Sequence[float]]],
    title: str,
    xlabel: str,
    ylabel: str,
    *,
    log: str = "",
    across: dict[str, float] | None = None,
    down: dict[str, float] | None = None,
    guess: tuple[float, Guess] | None = None,
    colors: dict[str, str] | None = None,
    axes: Axes | None = None,
) -> Axes:
    """A line for each of ``series``, (xs, ys): its method's colour, or black; what shares one differs in dashes.

    ``log`` names the logarithmic axes: "", "x", "y" or "xy"; x has its ticks where the first series has its points.
    ``across`` and ``down`` are named horizontal and vertical lines, ``guess`` is (x, the reader's guess), by its value
    in the unit of y. ``colors`` overrides. Raises ValueError where ``series`` is empty or ``log`` is something else.
    """
    if not series:
        raise ValueError("series is empty; it must map at least one label to (xs, ys)")
    if log not in ("", "x", "y", "xy"):
        raise ValueError(f"log is {log!r}; allowed: '', 'x', 'y', 'xy'")
    if axes is None:
        axes = style.new_axes(8, 3.8)
    axes.set(xscale="log" if "x" in log else "linear", yscale="log" if "y" in log else "linear")
    used: list[str] = []
    for label, (xs, ys) in series.items():
        color = _color(label, colors)
        dash, marker = STYLES[used.count(color) % len(STYLES)]
        used.append(color)
        marks = dict(marker=marker, markersize=5) if len(xs) <= MANY else {}
        axes.plot(xs, ys, dash, color=color, label=label, **marks)  # type: ignore[arg-type]
    if guess is not None:
        axes.plot(guess[0], guess[1].value, label="your guess", **style.GUESS)
    style.plain_log(axes, x=list(next(iter(series.values()))[0]))
    if len(axes.get_legend_handles_labels()[1]) > 1:
        axes.legend(frameon=False, fontsize=9)
    for at in (down or {}).values():
        axes.axvline(at, color="black", linestyle=":", linewidth=1, zorder=1)
    shades = {name: _color(name, colors) for name in across or {}}
    for name, at in (across or {}).items():
        axes.axhline(at, color=shades[name], linestyle=":", linewidth=1, zorder=1)
    axes.set(xlabel=xlabel, ylabel=ylabel)
    name_levels(axes, across or {}, shades)
    style.finish(axes, title, down=down)
    say(axes, _words(series, xlabel, ylabel, (across or {}) | (down or {}), guess))
    return axes


def losses(
    curves: dict[str, dict[str, Sequence[tuple[float, float]]]],
    title: str,
    *,
    colors: dict[str, str] | None = None,
    axes: Axes | None = None,
) -> Axes:
    """The losses of runs in one picture: validation as marked lines with its last value, training as thin ones behind.

    Validation that was taken before and after alone is two marks: no line says what was between.

    ``curves`` gives for each run, as readings keep it, {"train": [(step, bits per byte)], "validation": ...}; either
    may be missing. Raises ValueError where no run has a point.
    """
    if not any(any(curve.values()) for curve in curves.values()):
        raise ValueError("curves has no points; it must map at least one run to its train or validation losses")
    if axes is None:
        axes = style.new_axes(8, 3.8)
    used: list[str] = []
    told: list[str] = []
    for name, curve in curves.items():
        color = _color(name, colors)
        dash, marker = STYLES[used.count(color) % len(STYLES)]
        used.append(color)
        train, validation = list(curve.get("train", [])), list(curve.get("validation", []))
        if train:
            label = None if validation else name
            axes.plot(*zip(*train), dash, color=color, alpha=0.3 if validation else 1, linewidth=1, label=label)
        if validation:
            label = f"{name}: {validation[-1][1]:.3f} at the end"
            between = dash if len(validation) > 2 else "none"
            axes.plot(*zip(*validation), linestyle=between, color=color, marker=marker, markersize=5, label=label)
        if shown := validation or train:
            told.append(f"{name}: " + ", ".join(f"{loss:.3f} at step {step}" for step, loss in (shown[0], shown[-1])))
    both = any(curve.get("train") and curve.get("validation") for curve in curves.values())
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.margins(y=0.1)
    axes.legend(frameon=False, fontsize=9, title="validation (thin: training batches)" if both else None)
    style.finish(axes, title, "optimizer step", "loss (bits per byte)")
    say(axes, f"Loss in bits per byte by optimizer step. {'; '.join(told)}.")
    return axes


def _color(label: str, colors: dict[str, str] | None) -> str:
    return (colors or {}).get(label) or style.method_color(label, "#000000")


def _words(series, xlabel: str, ylabel: str, named: dict[str, float], guess) -> str:
    told = []
    for label, (xs, ys) in series.items():
        points = list(zip(xs, ys))
        if len(points) > 8:
            points = points[:: len(points) // 4]
        told.append(f"{label}: " + ", ".join(f"{y:,.4g} at {x:,.4g}" for x, y in points))
    told += [f"line {name} at {at:,.4g}" for name, at in named.items()]
    told += [f"your guess {guess[1]} at {guess[0]:,.4g}"] if guess else []
    return f"Lines: {ylabel} by {xlabel}. {'; '.join(told)}."
