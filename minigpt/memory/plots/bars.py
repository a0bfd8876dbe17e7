"""Where the bytes are: one bar for each case, its buckets side by side."""

from __future__ import annotations

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from minigpt.guess import Guess
from minigpt.memory.buckets import BUCKETS, Ledger, StepMemory
from minigpt.memory.plots import style
from minigpt.memory.plots.described import say

HEIGHT = 0.64  # of a bar, where rows are 1 apart
TICK = 0.84  # of a reading's tick: it stands out above and below the bar


def stacked_bars(
    cases: dict[str, Ledger | StepMemory],
    title: str,
    *,
    measured: dict[str, Ledger | StepMemory | int] | None = None,
    reading: str = "measured",
    limits: dict[str, int] | None = None,
    guess: Guess | dict[str, Guess] | None = None,
    axes: Axes | None = None,
) -> Axes:
    """One horizontal bar for each of ``cases``; the number beside it is the bar's length.

    A StepMemory is drawn at its peak, its frozen weights hatched. ``measured`` gives for labels of ``cases`` what an
    instrument read, in bytes: a black tick, named ``reading`` in the legend ("published" for somebody else's).
    ``limits`` are named vertical lines, in bytes. ``guess`` is the reader's, of the only case, or of labels of
    ``cases``; one that is far too large stands at the right edge as an arrow.

    Raises ValueError where ``cases`` is empty or where ``measured`` or ``guess`` names no case.
    """
    if not cases:
        raise ValueError("cases is empty; it must map at least one label to a Ledger or StepMemory")
    ticks = {label: _bytes(found) for label, found in (measured or {}).items()}
    guesses = _guesses(guess, cases)
    for argument, given in (("measured", ticks), ("guess", guesses)):
        for label in given:
            if label not in cases:
                raise ValueError(f"{argument} has {label!r}, which is no case; the cases are {', '.join(cases)}")
    limits = limits or {}
    longest = max([_bytes(case) for case in cases.values()] + [*ticks.values(), *limits.values()])
    unit, divisor = style.unit_of(longest)
    if axes is None:
        axes = style.new_axes(8, max(2.1, 1.3 + 0.45 * len(cases)))
    right = 1.17 * longest / divisor or 1
    labels = []
    for row, (label, case) in enumerate(cases.items()):
        _draw_bar(axes, row, case, divisor)
        ends = [_bytes(case) / divisor]
        if label in ticks:
            ends.append(ticks[label] / divisor)
            axes.plot([ends[-1]] * 2, [row - TICK / 2, row + TICK / 2], color="black", linewidth=2, zorder=4)
        if label in guesses:
            ends.append(_draw_guess(axes, row, guesses[label].bytes / divisor, right))
        labels.append((row, f"{style.number(ends[0])} {unit}", ends))
    for nbytes in limits.values():
        axes.axvline(nbytes / divisor, color="black", linestyle="--", linewidth=1, zorder=1.5)
    axes.set_yticks(range(len(cases)), list(cases))
    axes.set_ylim(len(cases) - 0.4, -0.6)
    axes.set_xlim(0, right)
    style.finish(axes, title, f"memory ({unit})")
    style.legend_beside(axes, _handles(cases, ticks, reading, guesses))
    if limits:
        _name_limits(axes, {name: nbytes / divisor for name, nbytes in limits.items()})
    _write_lengths(axes, labels, [nbytes / divisor for nbytes in limits.values()])
    say(axes, _words(cases, ticks, reading, limits, guesses, unit, divisor))
    return axes


def _ledger(case: Ledger | StepMemory) -> Ledger:
    return case.peak if isinstance(case, StepMemory) else case


def _bytes(case: Ledger | StepMemory | int) -> int:
    return case if isinstance(case, int) else _ledger(case).total


def _frozen(case: Ledger | StepMemory) -> int:
    """Bytes of frozen weights, where they are wide enough to be seen."""
    frozen = case.frozen if isinstance(case, StepMemory) else 0
    return frozen if frozen > _bytes(case) / 1000 else 0


def _guesses(guess: Guess | dict[str, Guess] | None, cases: dict) -> dict[str, Guess]:
    if isinstance(guess, Guess):
        if len(cases) > 1:
            raise ValueError(
                f"guess is one for {len(cases)} cases; say of which: {{label: guess}}, of {', '.join(cases)}"
            )
        return {next(iter(cases)): guess}
    return guess or {}


def _draw_bar(axes: Axes, row: int, case: Ledger | StepMemory, divisor: int) -> None:
    left = 0.0
    for bucket in BUCKETS:
        width = getattr(_ledger(case), bucket) / divisor
        if width:
            axes.barh(row, width, HEIGHT, left=left, color=style.COLORS[bucket], edgecolor="white", linewidth=0.5)
            left += width
    if frozen := _frozen(case):
        axes.barh(row, frozen / divisor, HEIGHT, color="none", **style.FROZEN)


def _draw_guess(axes: Axes, row: int, at: float, right: float) -> float:
    """A mark at ``at``, or an arrow at the edge; returns where the mark is."""
    inside = min(at, 0.985 * right)
    axes.plot(inside, row, **(style.GUESS if inside == at else style.GUESS | {"marker": ">"}))
    return inside


def _name_limits(axes: Axes, limits: dict[str, float]) -> None:
    """The names over the frame, each at its line, in the lowest row where it meets no other; the title above them."""
    style.lay_out(axes)
    ends: list[float] = []  # of each row, in pixels
    for name, at in sorted(limits.items(), key=lambda pair: pair[1]):
        text = axes.annotate(name, (at, 1), xycoords=("data", "axes fraction"), xytext=(0, 3),
                             textcoords="offset points", fontsize=8, va="bottom", ha="center")  # fmt: skip
        box = text.get_window_extent()
        row = next((i for i, end in enumerate(ends) if end + 4 < box.x0), len(ends))
        ends[row : row + 1] = [box.x1]
        text.xyann = (0, 3 + 11 * row)
    axes.set_title(axes.get_title(loc="left"), loc="left", fontsize=11, wrap=True, pad=9 + 11 * len(ends))


def _write_lengths(axes: Axes, labels: list[tuple[int, str, list[float]]], limits: list[float]) -> None:
    """Each bar's length beside its end, moved to the right of the marks and lines that it would meet.

    A label has to know how wide it is and what stands beside it, in pixels; so the figure is laid out here.
    """
    style.lay_out(axes)
    pixel = axes.transData.transform
    for row, words, marks in labels:
        gap = {at: 9 for at in marks[1:]} | {at: 5 for at in [marks[0], *limits]}  # points
        at = marks[0]
        text = axes.annotate(words, (at, row), xytext=(5, 0), textcoords="offset points", va="center", fontsize=9,
                             bbox=style.WHITE_BOX, zorder=3)  # fmt: skip
        for mark in sorted(gap):
            box = text.get_window_extent()
            here = pixel((mark, row))[0]
            if box.x0 - 6 < here < box.x1 + 6:
                text.xy, text.xyann = (mark, row), (gap[mark], 0)


def _handles(cases: dict, ticks: dict, reading: str, guesses: dict) -> list[Artist]:
    seen = max(_bytes(case) for case in cases.values()) / 1000  # less than that is no visible width
    handles: list[Artist] = [
        style.swatch(b) for b in BUCKETS if any(getattr(_ledger(case), b) > seen for case in cases.values())
    ]
    if any(_frozen(case) for case in cases.values()):
        handles.append(style.frozen_swatch())
    if ticks:
        handles.append(Line2D([], [], color="black", marker="|", markersize=11, markeredgewidth=2, linestyle="none",
                              label=reading))  # fmt: skip
    return handles + ([style.guess_mark()] if guesses else [])


def _words(cases, ticks, reading, limits, guesses, unit, divisor) -> str:
    told = []
    for label, case in cases.items():
        parts = [f"{b} {style.number(n / divisor)}" for b, n in _ledger(case).as_dict().items() if n >= divisor / 200]
        if frozen := _frozen(case):
            parts.append(f"of the weights {style.number(frozen / divisor)} frozen")
        if label in ticks:
            parts.append(f"{reading} {style.number(ticks[label] / divisor)}")
        if label in guesses:
            parts.append(f"your guess {style.number(guesses[label].bytes / divisor)}")
        told.append(f"{label}: {style.number(_bytes(case) / divisor)}" + (f" ({', '.join(parts)})" if parts else ""))
    lines = "; ".join(f"{name} at {style.number(nbytes / divisor)}" for name, nbytes in limits.items())
    return f"Bars in {unit}. {'. '.join(told)}." + (f" Lines: {lines}." if lines else "")
