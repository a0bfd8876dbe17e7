"""Words that nothing crosses: numbers beside bars, names of horizontal lines.

A label has to know how wide it is and what stands beside it, in pixels; so they come after everything else.
"""

from __future__ import annotations

from matplotlib.axes import Axes

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


def write_numbers(axes: Axes, rows: list[tuple[str, float, list[float]]], lines: list[float]) -> None:
    """Row by row its words, right of the bar's end; further right where a mark of the row or a line would cross them.

    ``rows`` are (words, the bar's end, where its marks are); ``lines`` cross all rows. The axes are laid out already.
    """
    for row, (words, end, marks) in enumerate(rows):
        text = axes.annotate(words, (end, row), xytext=(5, 0), textcoords="offset points", va="center", fontsize=9,
                             bbox=style.WHITE_BOX, zorder=3)  # fmt: skip
        for at in sorted([*marks, *lines]):
            box, here = text.get_window_extent(), axes.transData.transform((at, row))[0]
            if box.x0 - 6 < here < box.x1 + 6:
                text.xy, text.xyann = (at, row), (9 if at in marks else 5, 0)
