"""A real lab handed in by somebody who solved it, and the hands that change the file on its way."""

from __future__ import annotations

import io
import json
import shutil
import zipfile
from copy import deepcopy
from pathlib import Path

from tools import ROOT
from tools.grading.notebook import grade_id, read, solution
from tools.grading.submission import check

LAB = "lab01-count"
NAME = f"{LAB}.ipynb"
RELEASED = ROOT / "labs" / LAB / NAME
UNTOUCHED: dict = json.loads(RELEASED.read_text(encoding="utf8"))
ANSWER, WRITTEN = "return 4242", "Sixteen bytes."


def solved() -> dict:
    """The lab as JSON, with the same answer in every exercise, and a written one."""
    data = deepcopy(UNTOUCHED)
    for cell in data["cells"]:
        cell["source"] = "".join(cell["source"]).replace("raise NotImplementedError()", ANSWER)
        if cell["id"].endswith("-answer"):
            cell["source"] += f"\n\n{WRITTEN}"
    return data


SOLVED = json.dumps(solved())


def cell_of(data: dict, name: str) -> dict:
    """The cell with this id, or the first with this tag."""
    return next(cell for cell in data["cells"] if name in (cell["id"], *cell["metadata"].get("tags", [])))


def put(folder: Path, **files: str | bytes) -> None:
    """Write files; names are paths, given by ``**{"a/b.py": text}``."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())


def packed(**files: str | bytes) -> bytes:
    """A zip archive."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as opened:
        for name, text in files.items():
            opened.writestr(name, text)
    return archive.getvalue()


class Handed:
    """What ``check`` made of a folder: its notes, the notebook, the files beside it."""

    def __init__(self, folder: Path) -> None:
        self.output = folder.parent / "checked" / NAME
        shutil.rmtree(self.output.parent, ignore_errors=True)  # as the grader does
        self.notes = check(folder, RELEASED, self.output)
        self.notebook = read(self.output)
        self.text = "\n".join(cell.source for cell in self.notebook.cells[bool(self.notes) :])
        beside = [path for path in self.output.parent.rglob("*") if path.is_file() and path != self.output]
        self.files = {path.relative_to(self.output.parent).as_posix() for path in beside}
        graded = {grade_id(cell): cell for cell in self.notebook.cells if grade_id(cell)}
        assert {*graded} == {grade_id(cell) for cell in read(RELEASED).cells} - {None}
        self.answers = sum(ANSWER in cell.source for cell in graded.values() if solution(cell))
        self.source = {cell.id: cell.source for cell in self.notebook.cells}
