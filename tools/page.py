"""A page that is neither lesson nor lab: its text, its numbers beside it, and names that its placeholders alone see."""

from __future__ import annotations

from pathlib import Path

import jupytext
from nbformat.v4 import new_markdown_cell

from tools import cells, prose


def make(path: Path, offered: dict) -> tuple[list, str]:
    """The page's cells, with a title cell before them, and its title. ``offered`` are more names for placeholders.

    Raises ValueError for a text that breaks a rule.
    """
    text = path.read_text(encoding="utf-8-sig")
    try:
        source = jupytext.reads(text, fmt="md:myst")
    except Exception as error:  # jupytext and yaml raise many kinds, all about the text
        raise ValueError(f"not valid MyST: {' '.join(str(error).split())}") from None
    title = source.metadata.get("title")
    if not isinstance(title, str) or not title.strip():
        raise ValueError(f"front matter: title is {title!r}; it must be text")
    body = cells.expand(source.cells, path.stem, graded=False)
    markdown = [cell for cell in body if cell.cell_type == "markdown"]
    words = prose.filled([cell.source for cell in markdown], text, path.with_suffix(".numbers.py"), offered)
    for cell, filled in zip(markdown, words, strict=True):
        cell.source = filled
    return [new_markdown_cell(f"# {title}", id="title"), *body], title
