"""What a lesson's own cells define, for the numbers of its prose: a claim about a formula is about the one shown."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import jupytext

from tools import ROOT


def shown(path: str, *names: str, given: dict) -> dict:
    """Run the code cells of these names, in this order, and give what they and ``given`` define.

    ``path`` is the text's, relative to the course's folder; ``given`` are the names that earlier cells and imports
    would have made. What the cells print is dropped. Raises ValueError for a name that no code cell of the text has.
    """
    text = (ROOT / Path(path)).read_text(encoding="utf8")
    code = {
        cell.metadata.get("name"): cell.source
        for cell in jupytext.reads(text, fmt="md:myst").cells
        if cell.cell_type == "code"
    }
    made = dict(given)
    for name in names:
        if name not in code:
            raise ValueError(f"name is {name!r}; {path} has no code cell of that name")
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile(code[name], f"{path}, {name}", "exec"), made)
    return made
