"""An exercise that a lab has lost or gained since it was graded, in the gradebook.

nbgrader refuses such a lab once there are submissions. Here what is gone goes, with the points that were given for it,
and what is new gets an empty entry in each submission. Points and comments of all other exercises stay.
"""

from __future__ import annotations

from pathlib import Path

import nbformat
from nbgrader.api import Comment, Gradebook, MissingEntry
from nbgrader.api import Grade as Entry
from nbgrader.utils import is_grade, is_locked, is_solution, is_task

KINDS = {
    "grade": is_grade, "solution": is_solution, "task": is_task,
    "source": lambda cell: is_grade(cell) or is_solution(cell) or is_task(cell) or is_locked(cell),
}  # fmt: skip


def follow(book: Gradebook, lab: str, source: Path) -> list[str]:
    """Make the gradebook's cells of ``lab`` those of ``source``. Returns the names that came or went."""
    try:
        notebook = book.find_notebook(lab, lab)
    except MissingEntry:
        return []
    changed = []
    cells = nbformat.read(source, as_version=4).cells
    for kind, test in KINDS.items():
        wanted = {cell.metadata.nbgrader.grade_id: cell for cell in cells if test(cell)}
        known = {cell.name: cell for cell in getattr(notebook, f"{kind}_cells")}
        for name in known.keys() - wanted:
            for entry in (*getattr(known[name], "grades", ()), *getattr(known[name], "comments", ())):
                book.db.delete(entry)
            book.db.delete(known[name])
            changed.append(name)
        book.db.commit()
        for name in wanted.keys() - known:
            about = {} if kind == "solution" else {"cell_type": wanted[name].cell_type}
            if kind in ("grade", "task"):
                about["max_score"] = float(wanted[name].metadata.nbgrader.points)
            cell = getattr(book, f"add_{kind}_cell")(name, lab, lab, **about)
            for submission in notebook.submissions:
                if kind in ("grade", "task"):
                    book.db.add(Entry(cell=cell, notebook=submission))
                if kind in ("solution", "task"):
                    book.db.add(Comment(cell=cell, notebook=submission))
            changed.append(name)
        book.db.commit()
    return sorted({*changed})
