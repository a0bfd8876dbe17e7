"""The map of the course: content/index.md -> index.ipynb, which lies above lessons/ and labs/, and in work/ likewise.

Its figures are those that the notebooks declare. Beside what every text's placeholders see, the map's see

    row("01", "say what ...")   a line of its table: the notebook, its minutes, what somebody can do after it
    link("lab01")               the notebook's name, linked
    lessons, labs               the names of all; hours(lessons + labs): how long they take to read and work
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from tools import page

TEXT, PAGE = "content/index.md", "index.ipynb"
BUDGET = {"minutes": {"cpu": 1, "gpu": 1}, "memory_gb": {"ram": 2, "vram": 0}}  # `make run` makes its page


def make(root: Path, notebooks: dict[str, str]) -> tuple[list, dict] | None:
    """The map's cells and its metadata, from the built ``notebooks`` by their paths; None where the course has no map.

    Raises ValueError for a text that breaks a rule, and for a notebook that the map forgets or does not know.
    """
    path = root / TEXT
    if not path.exists():
        return None
    course = Map(notebooks)
    cells, title = page.make(path, course.names())
    if forgotten := [name for name in course.pages if name not in course.rows]:
        raise ValueError(f"the map has no row for {', '.join(forgotten)}")
    ledger = {"kind": "index", "source": TEXT, "title": title, **BUDGET}
    return cells, ledger


class Map:
    """What the notebooks declare, by their short names ("01", "lab01"), and which of them got a row."""

    def __init__(self, notebooks: dict[str, str]) -> None:
        pages = {Path(path).stem.split("-")[0]: path for path in sorted(notebooks) if _a_page(path)}
        self.pages = pages
        self.ledgers = {name: json.loads(notebooks[path])["metadata"]["ledger"] for name, path in pages.items()}
        self.rows: set[str] = set()

    def names(self) -> dict:
        """What the map's placeholders see."""
        labs = [name for name in self.pages if name.startswith("lab")]
        lessons = [name for name in self.pages if name not in labs]
        return {"row": self.row, "link": self.link, "hours": self.hours, "lessons": lessons, "labs": labs}

    def link(self, name: str) -> str:
        if name not in self.pages:
            raise ValueError(f"{name!r} is no notebook; there is {', '.join(self.pages)}")
        return f"[{self.ledgers[name]['title']}]({self.pages[name]})"

    def row(self, name: str, after: str) -> str:
        link, ledger = self.link(name), self.ledgers[name]
        self.rows.add(name)
        return f"| {link} | {ledger['read']}&nbsp;min | {ledger['minutes']['cpu']:g}&nbsp;min | {after} |"

    def hours(self, names: Iterable[str]) -> str:
        """Minutes of reading and work in hours, rounded up."""
        return f"{-(-sum(self.ledgers[name]['read'] for name in names) // 60)} hours"


def _a_page(path: str) -> bool:
    """Whether a notebook is a lesson, or the students' version of a lab: other pages have no number."""
    return path.startswith(("lessons/", "labs/")) and Path(path).stem.removeprefix("lab")[:2].isdigit()
