"""The words around a picture, crossed by nothing: its title, names of axes and of lines, numbers beside bars.

A label has to know how wide it is and what stands beside it, in pixels; so these lay the figure out as they go, and
come after everything else has been drawn.
"""

from __future__ import annotations

import textwrap

from matplotlib.axes import Axes

from minigpt.memory.plots import style


def lay_out(axes: Axes) -> None:
    """Give everything its place, so that extents in pixels are known."""
    axes.figure.canvas.figure.draw_without_rendering()


def finish(axes: Axes, title: str, xlabel: str = "", ylabel: str = "", *, down: dict[str, float] | None = None) -> None:
    """The axes' names, no frame at the top and on the right, names over vertical lines (at ``down``), then the title.

    The title begins where the picture does, and takes as many lines as it needs.
    """
    axes.set(xlabel=xlabel or axes.get_xlabel(), ylabel=ylabel or axes.get_ylabel())
    axes.spines[["top", "right"]].set_visible(False)
    rows = _name_lines(axes, down) if down else 0
    text = axes.set_title(title, loc="left", fontsize=11, pad=9 + 11 * rows if rows else 6)
    needed = text.get_window_extent().width
    text.set_text("")  # a title wider than the figure would squeeze the axes
    lay_out(axes)
    box, around = axes.get_window_extent(), axes.get_tightbbox(for_layout_only=True)
    left = around.x0 if around else box.x0
    room = (axes.figure.bbox.x1 if len(axes.figure.axes) == 1 else box.x1) - left - 4
    text.set_x((left - box.x0) / box.width)
    text.set_text(title if needed <= room else textwrap.fill(title, int(0.97 * len(title) * room / needed)))


def _name_lines(axes: Axes, at: dict[str, float]) -> int:
    """Names over the frame, each in the lowest row where it meets no other; returns how many rows there are."""
    lay_out(axes)
    ends: list[float] = []  # of each row, in pixels
    for name, x in sorted(at.items(), key=lambda pair: pair[1]):
        text = axes.annotate(name, (x, 1), xycoords=("data", "axes fraction"), xytext=(0, 3),
                             textcoords="offset points", fontsize=8, va="bottom", ha="center")  # fmt: skip
        box = text.get_window_extent()
        row = next((i for i, end in enumerate(ends) if end + 4 < box.x0), len(ends))
        ends[row : row + 1] = [box.x1]
        text.xyann = (0, 3 + 11 * row)
    return len(ends)


def name_levels(axes: Axes, at: dict[str, float], colors: dict[str, str]) -> None:
    """The names of horizontal lines on the right of the frame, pushed apart where they would meet."""
    lay_out(axes)
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

    ``rows`` are (words, the bar's end, where its marks are); ``lines`` cross all rows.
    """
    lay_out(axes)
    for row, (words, end, marks) in enumerate(rows):
        text = axes.annotate(words, (end, row), xytext=(5, 0), textcoords="offset points", va="center", fontsize=9,
                             bbox=style.WHITE_BOX, zorder=3)  # fmt: skip
        for at in sorted([*marks, *lines]):
            box, here = text.get_window_extent(), axes.transData.transform((at, row))[0]
            if box.x0 - 6 < here < box.x1 + 6:
                text.xy, text.xyann = (at, row), (9 if at in marks else 5, 0)
