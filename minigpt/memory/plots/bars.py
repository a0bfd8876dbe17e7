"""Where the bytes are: one bar for each case, its buckets side by side; and plain bars, for ratios and counts."""

from __future__ import annotations

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from minigpt.guess import Guess
from minigpt.memory.buckets import BUCKETS, Ledger, StepMemory
from minigpt.memory.plots import style
from minigpt.memory.plots.described import say
from minigpt.memory.plots.labels import write_numbers

HEIGHT = 0.64  # of a bar, where rows are 1 apart
TICK = 0.84  # of a reading's tick: it stands out above and below the bar

Guesses = Guess | dict[str, Guess]


def stacked_bars(
    cases: dict[str, Ledger | StepMemory],
    title: str,
    *,
    measured: dict[str, Ledger | StepMemory | int] | None = None,
    reading: str = "measured",
    limits: dict[str, int] | None = None,
    guess: Guesses | None = None,
    axes: Axes | None = None,
) -> Axes:
    """One horizontal bar for each of ``cases``; the number beside it is the bar's length.

    A StepMemory is drawn at its peak, its frozen weights hatched. ``measured`` gives for labels of ``cases`` what an
    instrument read, in bytes: a black tick, named ``reading`` in the legend ("published" for somebody else's).
    ``limits`` are named vertical lines, in bytes. ``guess`` is the reader's, of the only case, or of labels of
    ``cases``; one that is far too large stands at the right edge as an arrow.

    Raises ValueError where ``cases`` is empty or where ``measured`` or ``guess`` names no case.
    """
    ticks = _of_cases("measured", {label: _bytes(found) for label, found in (measured or {}).items()}, cases)
    guesses = {label: one.bytes for label, one in _guesses(guess, cases).items()}
    limits = limits or {}
    longest = max([_bytes(case) for case in cases.values()] + [*ticks.values(), *limits.values()])
    unit, divisor = style.unit_of(longest)
    if axes is None:
        axes = style.new_axes(8, max(2.1, 1.3 + 0.45 * len(cases)))
    for row, (label, case) in enumerate(cases.items()):
        _draw_buckets(axes, row, case, divisor)
        if label in ticks:
            at = ticks[label] / divisor
            axes.plot([at, at], [row - TICK / 2, row + TICK / 2], color="black", linewidth=2, zorder=4)
    style.legend_beside(axes, _entries(cases, ticks, reading, guesses))

    def scaled(sizes: dict) -> dict[str, float]:
        return {label: nbytes / divisor for label, nbytes in sizes.items()}

    ends = scaled({label: _bytes(case) for label, case in cases.items()})
    _frame(axes, ends, scaled(ticks), scaled(guesses), scaled(limits), title, f"memory ({unit})", f" {unit}")
    say(axes, f"Bars in {unit}. {_words(cases, ticks, reading, limits, guesses, divisor)}")
    return axes


def bars(
    values: dict[str, float],
    title: str,
    xlabel: str,
    *,
    unit: str = "",
    colors: dict[str, str] | None = None,
    lines: dict[str, float] | None = None,
    guess: Guesses | None = None,
    axes: Axes | None = None,
) -> Axes:
    """One horizontal bar for each of ``values``, its number and ``unit`` ("×", " u") beside it.

    ``xlabel`` says the unit, too. ``colors`` are those of labels; the others have their method's, or grey. ``lines``
    are named vertical lines, and ``guess`` is as in ``stacked_bars``, by its value: all in the unit of ``values``.
    Raises ValueError where ``values`` is empty or ``guess`` names no case.
    """
    guesses = {label: one.value for label, one in _guesses(guess, values).items()}
    lines = lines or {}
    if axes is None:
        axes = style.new_axes(8, max(2.1, 1.3 + 0.38 * len(values)))
    for row, (label, value) in enumerate(values.items()):
        axes.barh(row, value, HEIGHT, color=(colors or {}).get(label) or style.method_color(label))
    if guesses:
        style.legend_beside(axes, [style.guess_mark()])
    _frame(axes, values, {}, guesses, lines, title, xlabel, unit)
    told = [f"{label}: {style.number(value)}{unit}" for label, value in values.items()]
    told += [f"your guess for {label}: {style.number(value)}{unit}" for label, value in guesses.items()]
    told += [f"line {name} at {style.number(value)}{unit}" for name, value in lines.items()]
    say(axes, f"Bars, {xlabel}. {'; '.join(told)}.")
    return axes


def _frame(
    axes: Axes, ends: dict[str, float], ticks: dict, guesses: dict, lines: dict, title: str, xlabel: str, unit: str
) -> None:
    """Rows with their names, the lines, the guesses, the title, and a number beside each bar."""
    right = 1.17 * max([*ends.values(), *ticks.values(), *lines.values()]) or 1
    for at in lines.values():
        axes.axvline(at, color="black", linestyle="--", linewidth=1, zorder=1.5)
    rows = []
    for row, (label, end) in enumerate(ends.items()):
        at = None
        if label in guesses:
            at = min(guesses[label], 0.985 * right)
            axes.plot(at, row, **style.GUESS | ({} if at == guesses[label] else {"marker": ">"}))
        rows.append((f"{style.number(end)}{unit}", end, [ticks[label]] if label in ticks else [], at))
    axes.set_yticks(range(len(ends)), list(ends))
    axes.set_ylim(len(ends) - 0.4, -0.6)
    axes.set_xlim(0, right)
    style.finish(axes, title, xlabel, down=lines)
    write_numbers(axes, rows, list(lines.values()))


def _ledger(case: Ledger | StepMemory) -> Ledger:
    return case.peak if isinstance(case, StepMemory) else case


def _bytes(case: Ledger | StepMemory | float) -> float:
    return _ledger(case).total if isinstance(case, Ledger | StepMemory) else case


def _frozen(case: Ledger | StepMemory) -> int:
    """Bytes of frozen weights, where they are wide enough to be seen."""
    frozen = case.frozen if isinstance(case, StepMemory) else 0
    return frozen if frozen > _bytes(case) / 1000 else 0


def _guesses(guess: Guesses | None, cases: dict) -> dict[str, Guess]:
    if not isinstance(guess, Guess):
        return _of_cases("guess", guess or {}, cases)
    if len(cases) > 1:
        raise ValueError(f"guess is one for {len(cases)} cases; give {{label: guess}}, label one of {', '.join(cases)}")
    return _of_cases("guess", {label: guess for label in cases}, cases)


def _of_cases(argument: str, given: dict, cases: dict) -> dict:
    if not cases:
        raise ValueError("nothing is to be drawn; give at least one label with its value")
    for label in given:
        if label not in cases:
            raise ValueError(f"{argument} has {label!r}, which is no case; the cases are {', '.join(cases)}")
    return given


def _draw_buckets(axes: Axes, row: int, case: Ledger | StepMemory, divisor: int) -> None:
    left = 0.0
    for bucket in BUCKETS:
        width = getattr(_ledger(case), bucket) / divisor
        if width:
            axes.barh(row, width, HEIGHT, left=left, color=style.COLORS[bucket], edgecolor="white", linewidth=0.5)
            left += width
    if frozen := _frozen(case):
        axes.barh(row, frozen / divisor, HEIGHT, color="none", **style.FROZEN)


def _entries(cases: dict, ticks: dict, reading: str, guesses: dict) -> list[Artist]:
    seen = max(_bytes(case) for case in cases.values()) / 1000  # less than that is no visible width
    drawn = [bucket for bucket in BUCKETS if any(getattr(_ledger(case), bucket) > seen for case in cases.values())]
    entries: list[Artist] = [style.swatch(bucket) for bucket in drawn]
    if any(_frozen(case) for case in cases.values()):
        entries.append(style.frozen_swatch())
    if ticks:
        mark = dict(marker="|", markersize=11, markeredgewidth=2, linestyle="none", color="black")
        entries.append(Line2D([], [], label=reading, **mark))  # type: ignore[arg-type]
    return entries + ([style.guess_mark()] if guesses else [])


def _words(cases: dict, ticks: dict, reading: str, limits: dict, guesses: dict, divisor: int) -> str:
    def shown(nbytes: float) -> str:
        return style.number(nbytes / divisor)

    told = []
    for label, case in cases.items():
        parts = [f"{bucket} {shown(n)}" for bucket, n in _ledger(case).as_dict().items() if n >= divisor / 200]
        parts += [f"of the weights {shown(_frozen(case))} frozen"] if _frozen(case) else []
        parts += [f"{reading} {shown(ticks[label])}"] if label in ticks else []
        parts += [f"your guess {shown(guesses[label])}"] if label in guesses else []
        told.append(f"{label}: {shown(_bytes(case))}" + (f" ({', '.join(parts)})" if parts else ""))
    if limits:
        told.append("Lines: " + "; ".join(f"{name} at {shown(nbytes)}" for name, nbytes in limits.items()))
    return ". ".join(told) + "."
