"""A student's notebook, looked over and repaired before nbgrader sees it. The student's own file is never changed.

nbgrader finds a graded cell by the ``grade_id`` in its metadata. People copy, split and delete cells, and some
editors drop metadata; then nbgrader stops, or grants nothing without a word. Here the released notebook says which
cells there must be, and each is found again in this order: by its grade_id, by its cell id, by its text, by the
functions that it defines, as the only unknown cell of its kind between two known ones. What is not found is put back.

Left out: repairing what the student wrote. Nothing that a student typed into an answer is changed or dropped.
"""

from __future__ import annotations

import ast
import copy
import os
import re
from pathlib import Path

import nbformat
from nbformat import NotebookNode

CELL_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def check(folder: Path, release: Path, output: Path) -> list[str]:
    """Look over the submission in ``folder``, write it to ``output``, return what was repaired, a sentence each.

    ``release`` is the notebook that was handed out. Raises ValueError where there is nothing to grade.
    """
    path, notes = find(folder, release.name)
    notebook, repairs = repair(read(path), read(release))
    output.parent.mkdir(parents=True, exist_ok=True)
    temporary = output.with_suffix(".part")
    nbformat.write(notebook, temporary)
    os.replace(temporary, output)
    return notes + repairs


def find(folder: Path, name: str) -> tuple[Path, list[str]]:
    """The notebook in ``folder``: the one with the right name, or else the only one, or else the newest."""
    if (folder / name).is_file():
        return folder / name, []
    others = sorted((p for p in folder.glob("*.ipynb") if p.is_file()), key=lambda p: (p.stat().st_mtime, p.name))
    if not others:
        raise ValueError(f"there is no notebook in its folder; expected {name}")
    which = "" if len(others) == 1 else f", the newest of {len(others)},"
    return others[-1], [f"{others[-1].name}{which} was taken for {name}"]


def read(path: Path) -> NotebookNode:
    """A notebook of any version 3 or later, in version 4.5, with a cell id on every cell and no id twice."""
    try:
        notebook = nbformat.reader.reads(path.read_text(encoding="utf8"))
        if notebook.nbformat != 4:
            notebook = nbformat.convert(notebook, 4)
        seen: set[str] = set()
        for i, cell in enumerate(notebook.cells):
            new = nbformat.v4.new_code_cell if cell.cell_type == "code" else nbformat.v4.new_markdown_cell
            identity = cell.get("id") or cell.metadata.get("id")
            if not isinstance(identity, str) or not CELL_ID.fullmatch(identity) or identity in seen:
                identity = f"submitted-{i}"
            seen.add(identity)
            notebook.cells[i] = new(cell.source, id=identity, metadata=cell.metadata)  # outputs are not graded
        notebook.nbformat_minor = 5
        notebook.metadata.pop("widgets", None)  # states of progress bars; some editors write them broken
    except (ValueError, KeyError, AttributeError, TypeError, nbformat.ValidationError, RecursionError) as error:
        raise ValueError(f"{path.name} is not a notebook: {str(error).splitlines()[0][:120]}") from None
    return notebook


def repair(notebook: NotebookNode, release: NotebookNode) -> tuple[NotebookNode, list[str]]:
    """``notebook`` with each graded cell of ``release`` in it exactly once; and what was done, a sentence each.

    Raises ValueError where not one cell of the release is in it.
    """
    notes: list[str] = []
    wanted = {name: cell for cell in release.cells if (name := grade_id(cell))}
    cells = _without_injected(notebook.cells, notes)
    for cell in cells:
        if grade_id(cell) and grade_id(cell) not in wanted:
            notes.append(f"{grade_id(cell)} is no cell of this lab; it is an ordinary cell now")
            del cell.metadata["nbgrader"]
    for name, original in wanted.items():
        cells = _only_one(cells, name, original, notes)
    if not any(grade_id(cell) for cell in cells):
        notes.append("the nbgrader metadata of every cell was gone")
    _recognize(cells, wanted, {cell.source.strip() for cell in release.cells if not grade_id(cell)}, notes)
    if not any(grade_id(cell) for cell in cells):
        raise ValueError("it holds none of the lab's cells: most likely another notebook")
    for name, original in wanted.items():
        if not any(grade_id(cell) == name for cell in cells):
            cells.insert(_place(cells, name, list(wanted)), copy.deepcopy(original))
            notes.append(f"{name} was deleted; it was put back {'empty' if solution(original) else 'as released'}")
    for i, cell in enumerate(cells):
        if name := grade_id(cell):
            original = wanted[name]
            cell.metadata["nbgrader"] = copy.deepcopy(original.metadata["nbgrader"])
            if cell.cell_type != original.cell_type:
                notes.append(f"{name} had become a {cell.cell_type} cell")
                new = nbformat.v4.new_code_cell if original.cell_type == "code" else nbformat.v4.new_markdown_cell
                cells[i] = new(cell.source, id=cell.id, metadata=cell.metadata)
    notebook.cells = _distinct(cells)
    return notebook, notes


def grade_id(cell: NotebookNode) -> str | None:
    metadata = cell.metadata.get("nbgrader")
    return metadata.get("grade_id") if isinstance(metadata, dict) else None


def solution(cell: NotebookNode) -> bool:
    """Whether the student writes in this cell."""
    return bool(cell.metadata["nbgrader"].get("solution"))


def _without_injected(cells: list, notes: list[str]) -> list:
    """papermill's cell of parameters would be executed while grading: a preset, a device."""
    kept = [cell for cell in cells if "injected-parameters" not in cell.metadata.get("tags", [])]
    if len(kept) < len(cells):
        notes.append("papermill's injected parameters were left out")
    return kept


def _only_one(cells: list, name: str, original: NotebookNode, notes: list[str]) -> list:
    """Of several cells with one grade_id, keep the id on one. Copies of a locked cell go; a student's text stays."""
    same = [cell for cell in cells if grade_id(cell) == name]
    if len(same) < 2:
        return cells
    if not solution(original):  # locked, so the parts hold nothing of the student's
        notes.append(f"{name} was there {len(same)} times (copied or split); one was kept")
        return [cell for cell in cells if grade_id(cell) != name or cell is same[0]]
    if original.metadata["nbgrader"].get("grade"):  # graded by a person, who must see all of it
        notes.append(f"{name} was there {len(same)} times (copied or split); the parts were joined")
        same[0].source = "\n\n".join(cell.source for cell in same)
        return [cell for cell in cells if grade_id(cell) != name or cell is same[0]]
    # Code runs from top to bottom as it did for the student, whichever cell carries the id.
    notes.append(f"{name} was there {len(same)} times (copied or split); all parts run, the last carries the id")
    for cell in same[:-1]:
        del cell.metadata["nbgrader"]
    return cells


def _recognize(cells: list, wanted: dict, given: set[str], notes: list[str]) -> None:
    """Give cells their metadata back, best evidence first. Cells in ``given`` are the lab's own ordinary ones."""
    order = list(wanted)
    for rule in (_same_id, _same_text, _same_functions, _same_place):
        for name, original in wanted.items():
            free = [cell for cell in cells if not grade_id(cell) and cell.source.strip() not in given]
            if any(grade_id(cell) == name for cell in cells):
                continue
            found = rule(free, cells, name, original, order)
            if found:
                found[-1].metadata["nbgrader"] = copy.deepcopy(original.metadata["nbgrader"])
                notes.append(f"{name} had lost its metadata")


def _same_id(free, cells, name, original, order) -> list:
    return [cell for cell in free if cell.id == original.id]


def _same_text(free, cells, name, original, order) -> list:
    return [cell for cell in free if cell.source.strip() == original.source.strip()]


def _same_functions(free, cells, name, original, order) -> list:
    if not solution(original) or original.cell_type != "code":
        return []
    return [c for c in free if c.cell_type == "code" and defined(c.source) & defined(original.source)]


def _same_place(free, cells, name, original, order) -> list:
    """The only unknown cell of its kind between the nearest known ones."""
    before, after = _around(cells, name, order)
    if not solution(original) or (before < 0 and after == len(cells)):
        return []
    between = [c for c in cells[before + 1 : after] if c.cell_type == original.cell_type and any(c is f for f in free)]
    return between if len(between) == 1 else []


def _around(cells: list, name: str, order: list[str]) -> tuple[int, int]:
    """The places of the last cell that comes before ``name`` in the release, and of the first that comes after it."""
    rank = {other: i for i, other in enumerate(order)}
    known = [(i, rank[known]) for i, cell in enumerate(cells) if (known := grade_id(cell))]
    before = max((i for i, r in known if r < rank[name]), default=-1)
    return before, min((i for i, r in known if r > rank[name]), default=len(cells))


def defined(source: str) -> set[str]:
    """Names of the functions and classes that ``source`` defines, also where the rest of it does not parse."""
    try:
        return {node.name for node in ast.parse(source).body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    except (SyntaxError, ValueError):
        words = [line.split() for line in source.splitlines() if line.startswith(("def ", "class "))]
        return {parts[1].partition("(")[0].rstrip(":") for parts in words if len(parts) > 1}


def _place(cells: list, name: str, order: list[str]) -> int:
    """Where a deleted cell belongs: after the cell that comes before it in the release, or else before the next."""
    before, after = _around(cells, name, order)
    return before + 1 if before >= 0 else after


def _distinct(cells: list) -> list:
    """Cells put back may carry an id that a student's cell has, too."""
    seen: set[str] = set()
    for i, cell in enumerate(cells):
        if cell.id in seen:
            cell.id = f"repaired-{i}"
        seen.add(cell.id)
    return cells
