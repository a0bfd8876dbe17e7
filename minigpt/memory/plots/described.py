"""A picture in words: ``describe(axes)`` says what it shows, and a notebook's output carries that as alt text.

JupyterLab and nbconvert's pages draw a PNG without alt text, whatever its metadata say; both take an HTML image with
one. So a figure that IPython displays becomes that HTML image, the same PNG (for exporters that take no HTML), and the
words. Left out: widgets' figures, which draw themselves.
"""

from __future__ import annotations

import html
import sys
from weakref import WeakKeyDictionary

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

_said: WeakKeyDictionary[Axes, str] = WeakKeyDictionary()


def say(axes: Axes, words: str) -> None:
    """Keep what ``axes`` show, in words, after what is already kept of them."""
    _said[axes] = f"{_said[axes]} {words}" if axes in _said else words


def describe(picture: Axes | Figure) -> str:
    """The title, then the values: what the package's functions said of the axes, or else the labelled lines' ends."""
    if isinstance(picture, Figure):
        told = [_sentence(picture.get_suptitle()), *map(describe, picture.axes)]
        return " ".join(part for part in told if part)
    title = picture.get_title(loc="left") or picture.get_title()
    values = _said.get(picture) or _lines(picture)
    return " ".join(_sentence(part) for part in (title, values) if part)


def _lines(axes: Axes) -> str:
    x, y = axes.get_xlabel(), axes.get_ylabel()
    told = [f"{y or 'values'} by {x}"] if x else [y]
    for line in axes.get_lines():
        points, label = np.asarray(line.get_xydata()).tolist(), str(line.get_label())
        if label.startswith("_") or len(points) < 2:
            continue
        if line.get_transform() == axes.transData:
            told.append(f"{label}: " + ", ".join(f"{y:,.4g} at {x:,.4g}" for x, y in (points[0], points[-1])))
        else:  # from one side to the other
            told.append(f"{label} at {points[0][1] if points[0][1] == points[1][1] else points[0][0]:,.4g}")
    return "; ".join(part for part in told if part)


def _sentence(words: str) -> str:
    words = " ".join(words.split())
    return words if not words or words.endswith((".", "!", "?")) else f"{words}."


def _bundle(figure: Figure, include=None, exclude=None) -> tuple[dict, dict] | None:
    from IPython.core.pylabtools import print_figure

    png = print_figure(figure, base64=True)
    if png is None:  # nothing is drawn
        return None
    alt = describe(figure)
    image = f'<img alt="{html.escape(alt)}" src="data:image/png;base64,{png}">'
    return {"text/plain": alt, "text/html": image, "image/png": png}, {"image/png": {"alt": alt}}


def carry_descriptions() -> None:
    """From here on, a figure that IPython's inline backend displays carries its words; without IPython, nothing."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    if shell is None or "inline" not in plt.get_backend():
        return
    plt.switch_backend(plt.get_backend())  # loads it: when first asked for, it forgets all formatters of figures
    formatters = shell.display_formatter.formatters
    formatters["image/png"].pop(Figure, None)
    shell.display_formatter.mimebundle_formatter.for_type(Figure, _bundle)
