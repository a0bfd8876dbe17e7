"""Which of a student's cells is which cell of the release, best evidence first.

A graded cell is found by its grade_id, its id, its text, half of its lines, the functions that it defines, or as the
only unknown cell of its kind between two known ones. An ordinary one by id, text or half of its lines.
"""

from __future__ import annotations

import copy
from functools import lru_cache

from nbformat import NotebookNode

from tools.grading.code import defined, parsed, squeezed
from tools.grading.notebook import first_line, grade_id, new_cell, solution
from tools.grading.workbench import Workbench, called, is_locked

HIDDEN = "### BEGIN HIDDEN TESTS"  # in the course's own version, where nothing is typed
LEAST = 20  # characters by which a text is recognized inside another


def unmerge(bench: Workbench) -> None:
    """Cells of the release that were merged with others, parted again. Every character stays, in its order."""
    there = {cell.source.strip() for cell in bench.cells}
    for original in bench.release.cells:
        text = original.source.strip()
        if len(text) < LEAST or text in there:
            continue
        for i, cell in enumerate(bench.cells):
            before, found, after = f"\n{cell.source}\n".partition(f"\n{text}\n")
            name = grade_id(original)
            itself = grade_id(cell) == name if name else not grade_id(cell) and cell.id == original.id
            if not found or HIDDEN in cell.source or (itself and not _check(original)):
                continue  # what was typed into a task or into parameters has a place of its own
            parts = [before.strip("\n"), text, after.strip("\n")]
            keeps = 1 if itself else _keeps(cell, parts, bench)
            kinds = [_kind(parts[0], cell), original.cell_type, _kind(parts[2], cell)]
            pieces = [new_cell(kind, part, "new") for kind, part in zip(kinds, parts)]
            cell.source, pieces[keeps] = parts[keeps], cell
            bench.cells[i : i + 1] = [piece for piece in pieces if piece.source.strip()]
            if itself:
                typed = first_line("\n".join((parts[0], parts[2])))
                bench.notes.append(f"what was typed into {name} ({typed}) was kept in a cell of its own")
            else:
                bench.each(called(original), "had been merged with another cell", "had been merged with other cells")
            break


def _kind(text: str, cell: NotebookNode) -> str:
    """What a part of ``cell`` is: a sentence that somebody typed below code would stop as code."""
    prose = cell.cell_type == "code" and parsed(text) is None and not defined(text)
    return "markdown" if prose else cell.cell_type


def _check(original: NotebookNode) -> bool:
    return is_locked(original) and original.cell_type == "code"


def _keeps(cell: NotebookNode, parts: list[str], bench: Workbench) -> int:
    """Which of the two rests carries on as the cell itself: the one with the functions of the cell's exercise."""
    own = next((other for other in bench.release.cells if grade_id(cell) and grade_id(other) == grade_id(cell)), None)
    if own is not None and defined(parts[2]) & defined(own.source) and not defined(parts[0]) & defined(own.source):
        return 2
    return 0 if parts[0].strip() else 2


def certain(bench: Workbench) -> None:
    """Recognize by grade_id, id, text, and half of the lines."""
    for rule in (_same_grade_id, _same_id, _same_text, _same_tag, _same_lines):
        for original in bench.release.cells:
            _apply(bench, rule, original)


def likely(bench: Workbench) -> None:
    """Recognize answers by what they define, then by where they stand; last the places of written answers."""
    for rule in (_same_functions, _same_place, _same_start):
        for original in bench.release.cells:
            _apply(bench, rule, original)


def _apply(bench: Workbench, rule, original: NotebookNode) -> None:
    if original.id in bench.found:
        return
    cell = rule(bench, original)
    if cell is None:
        return
    bench.found[original.id] = cell
    name = grade_id(original)
    if name and grade_id(cell) != name:
        bench.each(name, "had lost its metadata", "had lost their metadata")
        cell.metadata["nbgrader"] = copy.deepcopy(original.metadata["nbgrader"])


def _unnamed(bench: Workbench, original: NotebookNode) -> list[NotebookNode]:
    """The free cells that may be ``original``: with no grade_id of their own, and no other cell of the lab."""
    free = [cell for cell in bench.free() if not grade_id(cell)]
    return [cell for cell in free if not grade_id(original) or squeezed(cell.source) not in bench.given]


def _same_grade_id(bench: Workbench, original: NotebookNode) -> NotebookNode | None:
    name = grade_id(original)
    return next((cell for cell in bench.free() if name and grade_id(cell) == name), None)


def _same_id(bench: Workbench, original: NotebookNode) -> NotebookNode | None:
    return next((cell for cell in _unnamed(bench, original) if cell.id == original.id), None)


def _same_text(bench: Workbench, original: NotebookNode) -> NotebookNode | None:
    text = squeezed(original.source)
    return next((cell for cell in _unnamed(bench, original) if squeezed(cell.source) == text), None)


def _same_tag(bench: Workbench, original: NotebookNode) -> NotebookNode | None:
    if "parameters" not in original.metadata.get("tags", []):
        return None
    return next((c for c in _unnamed(bench, original) if "parameters" in c.metadata.get("tags", [])), None)


def _same_lines(bench: Workbench, original: NotebookNode) -> NotebookNode | None:
    if not is_locked(original) and original.cell_type != "code" or (grade_id(original) and solution(original)):
        return None
    lines = _lines(original.source)
    shared = [(len(lines & _lines(cell.source)), cell) for cell in _unnamed(bench, original)]
    most, cell = max(shared, key=lambda pair: pair[0], default=(0, None))
    return cell if most and 2 * most >= len(lines) else None


@lru_cache(2_000)
def _lines(source: str) -> frozenset[str]:
    return frozenset(squeezed(line) for line in source.split("\n")) - {""}


def gone(bench: Workbench, original: NotebookNode) -> bool:
    """Whether an ordinary cell of the release was deleted: less than half of its lines are anywhere."""
    if original.id in bench.found:
        return False
    lines = _lines(original.source)
    return 2 * len(lines & {line for cell in bench.cells for line in _lines(cell.source)}) < len(lines)


def _same_functions(bench: Workbench, original: NotebookNode) -> NotebookNode | None:
    if not grade_id(original) or not solution(original) or original.cell_type != "code":
        return None
    wanted = defined(original.source)
    return next((cell for cell in reversed(_unnamed(bench, original)) if defined(cell.source) & wanted), None)


def _same_place(bench: Workbench, original: NotebookNode) -> NotebookNode | None:
    """The only unknown cell of its kind between the nearest known ones."""
    before, after = bench.around(original)
    if not grade_id(original) or not solution(original) or (before < 0 and after == len(bench.cells)):
        return None
    free = {id(cell) for cell in _unnamed(bench, original)}
    between = [cell for cell in bench.cells[before + 1 : after] if id(cell) in free]
    between = [cell for cell in between if cell.cell_type == original.cell_type]
    return between[0] if len(between) == 1 else None


def _same_start(bench: Workbench, original: NotebookNode) -> NotebookNode | None:
    """The cell for a written answer: the first below its task that begins as it does, or else the only one there."""
    if not original.id.endswith("-answer"):
        return None
    before, after = bench.around(original)
    free = {id(cell) for cell in _unnamed(bench, original)}
    below = [cell for cell in bench.cells[before + 1 : after] if id(cell) in free and cell.cell_type == "markdown"]
    begins = [cell for cell in below if squeezed(cell.source).startswith(squeezed(original.source))]
    return begins[0] if begins else below[0] if len(below) == 1 else None
