"""A student's notebook with each cell of the lab in it once and as released, and with everything that they wrote.

nbgrader finds a graded cell by the ``grade_id`` in its metadata. People copy, split, merge and delete cells, type into
the wrong one, and some editors drop metadata; then nbgrader stops, or grants nothing without a word. Here the released
notebook says which cells there must be; what is not found is put back.

Left out: repairing what the student wrote. Nothing that a student typed into an answer is changed or dropped.
"""

from __future__ import annotations

import copy

import nbformat
from nbformat import NotebookNode

from tools.grading import own, recognize
from tools.grading.code import defined, squeezed
from tools.grading.files import said
from tools.grading.notebook import grade_id, new_cell, solution
from tools.grading.workbench import Workbench, called, is_locked


def repair(notebook: NotebookNode, release: NotebookNode) -> tuple[NotebookNode, list[str]]:
    """``notebook`` with each graded cell of ``release`` in it exactly once; and what was done, a sentence each.

    Raises ValueError where it holds no cell of the lab, or more of another lab's.
    """
    bench = Workbench(release, list(notebook.cells))
    named = any(grade_id(cell) for cell in bench.cells)
    _foreign(bench)
    recognize.unmerge(bench)
    _answers_once(bench)
    recognize.certain(bench)
    own.locked(bench)
    own.parameters(bench)
    recognize.likely(bench)
    if not any(grade_id(cell) and cell.id in bench.found for cell in release.cells):
        raise ValueError("it holds none of the lab's cells: most likely another notebook; hand in this lab's")
    if not named:
        bench.notes = [note for note in bench.notes if "had lost" not in str(note)]
        bench.notes.insert(0, "the nbgrader metadata of every cell was gone")
    _put_back(bench)
    _answered_elsewhere(bench)
    _checks_below(bench)
    _as_released(bench)
    notebook.cells = bench.cells
    notebook.metadata = copy.deepcopy(release.metadata)
    return notebook, bench.sentences()


def _foreign(bench: Workbench) -> None:
    """Cells with the name of a graded cell that is none of this lab's become ordinary."""
    wanted = {grade_id(cell) for cell in bench.release.cells}
    foreign = [cell for cell in bench.cells if grade_id(cell) and grade_id(cell) not in wanted]
    if len({grade_id(cell) for cell in foreign}) > len({grade_id(cell) for cell in bench.cells} & (wanted - {None})):
        raise ValueError("most of its exercises are another lab's: hand in the notebook of this lab")
    for cell in foreign:
        bench.notes.append(f"{said(grade_id(cell), 40)} is no cell of this lab; it is an ordinary cell now")
        del cell.metadata["nbgrader"]


def _answers_once(bench: Workbench) -> None:
    """Of several cells with one answer's grade_id, one keeps it. A student's text stays, all of it."""
    for original in bench.release.cells:
        name = grade_id(original)
        same = [cell for cell in bench.cells if name and grade_id(cell) == name]
        if len(same) < 2 or not solution(original):
            continue
        found = [f"{verb} there {len(same)} times (copied or split)" for verb in ("was", "were")]
        if original.metadata["nbgrader"].get("grade"):  # graded by a person, who must see all of it
            bench.each(str(name), *(f"{x}; the parts were joined" for x in found))
            same[0].source = "\n\n".join(cell.source for cell in same)
            bench.cells = [cell for cell in bench.cells if grade_id(cell) != name or cell is same[0]]
            continue
        # Code runs from top to bottom as it did for the student, whichever cell carries the id.
        bench.each(str(name), *(f"{x}; all parts run, the last carries the id" for x in found))
        last = _last_above_its_check(bench, original, same)
        for cell in same:
            if cell is not last:
                del cell.metadata["nbgrader"]
                cell.id = "new"


def _last_above_its_check(bench: Workbench, answer: NotebookNode, same: list[NotebookNode]) -> NotebookNode:
    """The last of an answer's cells that the check has seen when it runs; a copy may lie far below."""
    below = bench.release.cells[bench.rank[answer.id] + 1 :]
    check = next((grade_id(cell) for cell in below if is_locked(cell)), None)
    place = next((i for i, cell in enumerate(bench.cells) if check and grade_id(cell) == check), len(bench.cells))
    above = [cell for cell in same if bench.at(cell) < place]
    return (above or same)[-1]


def _put_back(bench: Workbench) -> None:
    """Cells of the release that are in the notebook no more: the graded ones, and code that they need."""
    for original in bench.release.cells:
        name = grade_id(original)
        cell = bench.found.get(original.id)
        if not name and cell is not None and original.cell_type == "code" and not cell.source.strip():
            cell.source = original.source
            bench.each(called(original), "was empty; it was put back", "were empty; they were put back")
        if cell is not None or not (name or (original.cell_type == "code" and recognize.gone(bench, original))):
            continue
        before, after = bench.around(original)
        late = is_locked(original) and before < after < len(bench.cells)
        cell = copy.deepcopy(original)
        bench.cells.insert(after if late or before < 0 else before + 1, cell)
        bench.found[original.id] = cell
        how = "empty" if name and solution(original) else "as released"
        bench.each(called(original), f"was deleted; it was put back {how}", f"were deleted; they were put back {how}")


def _answered_elsewhere(bench: Workbench) -> None:
    """Where an answer's cell is untouched and a cell of the student's defines the answer, that cell is the answer."""
    for original in bench.release.cells:
        if not grade_id(original) or not solution(original) or original.cell_type != "code":
            continue
        stub = bench.found[original.id]
        wanted = defined(original.source)
        others = [cell for cell in bench.free() if cell.cell_type == "code" and defined(cell.source) & wanted]
        if squeezed(stub.source) != squeezed(original.source) or not others:
            continue
        answer, place = others[-1], bench.at(stub)
        written = set().union(*(defined(cell.source) for cell in others))
        bench.cells = [cell for cell in bench.cells if not any(cell is other for other in others)]
        place = bench.at(stub)
        keep = [] if wanted <= written else [new_cell("code", stub.source, "new")]
        bench.cells[place : place + 1] = [*keep, *others]
        bench.found[original.id] = answer
        how = "answered in another cell, which was taken for it"
        bench.each(str(grade_id(original)), f"was {how}", f"were {how}")


def _checks_below(bench: Workbench) -> None:
    """A check that stands above an answer that it may need is moved below it."""
    deepest = None
    for original in bench.release.cells:
        cell = bench.found.get(original.id)
        if cell is None or not grade_id(original):
            continue
        if solution(original):
            deepest = cell if deepest is None or bench.at(cell) > bench.at(deepest) else deepest
        elif original.cell_type == "code" and deepest is not None and bench.at(cell) < bench.at(deepest):
            del bench.cells[bench.at(cell)]
            bench.cells.insert(bench.at(deepest) + 1, cell)
            deepest = cell
            how = "stood above an answer;"
            bench.each(str(grade_id(original)), f"{how} it was moved below it", f"{how} they were moved below it")


def _as_released(bench: Workbench) -> None:
    """Kind, metadata and id of every known cell from the release; the student's own cells have ids of their own."""
    known = {id(cell): name for name, cell in bench.found.items()}
    originals = {cell.id: cell for cell in bench.release.cells}
    seen = set(bench.found)
    for i, cell in enumerate(bench.cells):
        name = known.get(id(cell))
        if name is None:
            cell.metadata = nbformat.NotebookNode()
            if cell.id in seen or cell.id == "new" or cell.id in originals:
                cell.id = next(f"own-{n}" for n in range(i, i + len(seen) + 2) if f"own-{n}" not in seen)
            seen.add(cell.id)
            continue
        original = originals[name]
        if cell.cell_type != original.cell_type:
            kind = cell.cell_type
            bench.each(called(original), f"had become a {kind} cell", f"had become {kind} cells")
            bench.cells[i] = cell = new_cell(original.cell_type, cell.source, name)
        cell.id, cell.metadata = name, copy.deepcopy(original.metadata)
