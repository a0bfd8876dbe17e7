"""Words that nothing crosses: numbers beside bars, names of horizontal lines.

A label has to know how wide it is and what stands beside it, in pixels; so they come after everything else.
"""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.text import Annotation

from minigpt.memory.plots import style


def name_levels(axes: Axes, at: dict[str, float], colors: dict[str, str]) -> None:
    """The names of horizontal lines on the right of the frame, pushed apart where they would meet."""
    style.lay_out(axes)
    end = float("-inf")
    for name, y in sorted(at.items(), key=lambda pair: pair[1]):
        text = axes.annotate(name, (1, y), xycoords=("axes fraction", "data"), xytext=(4, 0), color=colors[name],
                             textcoords="offset points", fontsize=9, va="center", ha="left")  # fmt: skip
        box = text.get_window_extent()
        push = max(0, end + 1 - box.y0)
        text.xyann = (4, push * 72 / axes.figure.dpi)
        end = box.y1 + push


def write_numbers(axes: Axes, rows: list[tuple[str, float, list[float], float | None]], lines: list[float]) -> None:
    """Row by row its words, right of the bar's end; further right where a tick of the row or a line would cross them.

    ``rows`` are (words, the bar's end, where its ticks are, where the reader's guess is or None); ``lines`` cross all
    rows. Words right of a guess would be taken for the guess's: they stand inside the bar, or, where it is too short,
    begin with "bar". The axes are laid out already.
    """
    for row, (words, end, ticks, guess) in enumerate(rows):
        text = axes.annotate(words, (end, row), xytext=(5, 0), textcoords="offset points", va="center", fontsize=9,
                             bbox=style.WHITE_BOX, zorder=3)  # fmt: skip
        _push(axes, text, row, ticks, lines)
        if guess is None or not _pixel(axes, end) < _pixel(axes, guess) < text.get_window_extent().x1 + 14:
            if guess is not None:
                _push(axes, text, row, [*ticks, guess], lines)
        elif not _move_inside(axes, text, min(end, *ticks) if ticks else end, row, lines):
            text.set_text(f"bar {words}")
            _push(axes, text, row, [*ticks, guess], lines)


def _push(axes: Axes, text: Annotation, row: int, marks: list[float], lines: list[float]) -> None:
    """To the right, past every mark and line that would cross the words."""
    for at in sorted([*marks, *lines]):
        box = text.get_window_extent()
        if box.x0 - 6 < _pixel(axes, at) < box.x1 + 6:
            text.xy, text.xyann = (at, row), (9 if at in marks else 5, 0)


def _move_inside(axes: Axes, text: Annotation, end: float, row: int, lines: list[float]) -> bool:
    """Left of the bar's end; False where the words are longer than the bar, or a line would cross them there."""
    right = _pixel(axes, end) - 6
    left = right - text.get_window_extent().width
    if left < _pixel(axes, 0) + 6 or any(left - 6 < _pixel(axes, at) < right + 6 for at in lines):
        return False
    text.xy, text.xyann = (end, row), (-7, 0)
    text.set_horizontalalignment("right")
    return True


def _pixel(axes: Axes, x: float) -> float:
    return axes.transData.transform((x, 0))[0]
