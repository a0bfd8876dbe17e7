"""Figures in words, for the ``alt`` of their pictures: what the runner's kernels load (an IPython extension).

A figure's plain text is then its titles, axes and curves, where IPython by itself says ``<Figure size 640x480>``.
Left out: the data. A title states what the figure shows, and the numbers are in the text beside it.
"""

from __future__ import annotations


def describe(figure) -> str:
    """One sentence per axes of a matplotlib figure: its title, its axes, its series, as far as they are named."""
    whole = figure.get_suptitle()
    said = [whole] if whole else []
    for axes in figure.axes:
        legend = axes.get_legend()
        series = [text.get_text() for text in legend.get_texts()] if legend else []
        title = next((text for text in map(axes.get_title, ("left", "center", "right")) if text), "")
        parts = [("", title), ("across: ", axes.get_xlabel()), ("up: ", axes.get_ylabel()), ("", ", ".join(series))]
        said += ["; ".join(before + text for before, text in parts if text)]
    return ". ".join(" ".join(text.split()) for text in said if text) or "a figure without words"


def load_ipython_extension(shell) -> None:
    """IPython calls this. matplotlib is not imported for it."""
    plain = shell.display_formatter.formatters["text/plain"]
    plain.for_type_by_name("matplotlib.figure", "Figure", lambda figure, printer, _: printer.text(describe(figure)))
