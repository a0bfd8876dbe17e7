"""What a student typed into cells that the course wrote is kept apart, and those cells are as released again."""

from __future__ import annotations

import ast

from nbformat import NotebookNode

from tools.grading import recognize
from tools.grading.code import assigned, cut, defined, parsed, squeezed, typed_code, typed_lines, without
from tools.grading.files import said
from tools.grading.notebook import first_line, grade_id, solution
from tools.grading.workbench import Workbench, called, is_locked


def parameters(bench: Workbench) -> None:
    """The grader's parameters instead of the student's; other code that was typed beside them stays."""
    names: set[str] = set()
    changed: list[str] = []
    _injected(bench)
    for original in bench.release.cells:
        tags = original.metadata.get("tags", [])
        if not {"parameters", "setup"} & set(tags):
            continue
        sets = {name for statement in parsed(original.source) or [] for name in assigned(statement)}
        names |= sets if "parameters" in tags else set()
        if original.id not in bench.found:
            recognize.certain(bench)  # merged with the one above, it stands by itself only now
        cell = bench.found.get(original.id)
        if cell is None or squeezed(cell.source) == squeezed(original.source):
            continue
        kept, set_here = typed_code(cell.source, original.source, names | sets)
        changed += set_here
        if kept.strip():
            bench.insert(bench.at(cell) + 1, "code", kept)
            bench.notes.append(
                f"what was typed into {called(original)} ({first_line(kept)}) was kept in a cell of its own below it"
            )
        cell.source = original.source
    given = {squeezed(cell.source) for cell in bench.release.cells}
    for cell in list(bench.cells):
        if cell.cell_type != "code" or squeezed(cell.source) in given or (grade_id(cell) and solution(cell)):
            continue
        rest, set_here = without(cell.source, names)
        if set_here and not grade_id(cell):
            changed += set_here
            cell.source = rest
    if changed:
        statements = ", ".join(dict.fromkeys(f"`{said(line, 60)}`" for line in changed[:6]))
        bench.notes.append(f"not used: {statements}; it is graded with the released parameters")


def _injected(bench: Workbench) -> None:
    """papermill's cell of parameters would be executed while grading: a preset, a device."""
    for cell in list(bench.cells):
        if "injected-parameters" in cell.metadata.get("tags", []) and not grade_id(cell):
            rest, _ = without(cell.source, None, "# Parameters")
            bench.notes.append("papermill's injected parameters were left out")
            if rest.strip():
                cell.source = rest
            else:
                del bench.cells[bench.at(cell)]


def locked(bench: Workbench) -> None:
    """Checks and tasks as they were released, each once; what was typed into one, where it belongs."""
    for original in filter(is_locked, bench.release.cells):
        name = grade_id(original)
        copies = [cell for cell in bench.cells if grade_id(cell) == name]
        if not copies:
            continue
        if len(copies) > 1:
            how = f"there {len(copies)} times (copied or split); one"
            bench.each(str(name), f"was {how} was kept", f"were {how} of each was kept")
        together = "".join(cell.source for cell in copies)
        courses_own = recognize.HIDDEN in together or "### BEGIN MARK SCHEME" in together
        if squeezed(together) != squeezed(original.source) and not courses_own:  # and not just split
            for cell in copies:
                (_typed_text if original.cell_type == "markdown" else _typed_code)(bench, original, cell)
        keep = bench.found.setdefault(original.id, copies[0])
        bench.cells = [cell for cell in bench.cells if grade_id(cell) != name or cell is keep]
        keep.source = original.source


def _typed_text(bench: Workbench, original: NotebookNode, cell: NotebookNode) -> None:
    """Text typed into a task goes into the answer below it, with the pictures in it."""
    text = "\n".join(typed_lines(cell.source, original.source)).strip("\n")
    if not text.strip():
        return
    name = grade_id(original)
    bench.found.setdefault(original.id, cell)
    answer = bench.found.get(f"{name}-answer")
    if answer is None:
        answer = bench.insert(bench.at(bench.found[original.id]) + 1, "markdown", text)
        if f"{name}-answer" in bench.rank:
            bench.found[f"{name}-answer"] = answer
    else:
        answer.source = f"{answer.source}\n\n{text}"
    if cell.get("attachments"):
        answer.attachments = {**cell.pop("attachments"), **answer.get("attachments", {})}
    bench.notes.append(f"what was typed into {name} was moved into the answer below it")


def _typed_code(bench: Workbench, original: NotebookNode, cell: NotebookNode) -> None:
    """Code typed into a check runs before it, in a cell of its own; inside the check's function it is only shown."""
    source, inside = cell.source, ""
    if parsed(source) is not None:
        given = {ast.dump(statement) for statement in parsed(original.source) or []}
        own = defined(original.source)
        source, edited = cut(source, lambda s: getattr(s, "name", None) in own and ast.dump(s) not in given)
        inside = "\n".join(line for segment in edited for line in typed_lines(segment, original.source))
    code, _ = typed_code(source, original.source)
    if code.strip() and parsed(code) is None:
        inside, code = code, ""
    if inside.strip():
        bench.insert(bench.at(cell), "markdown", f"```\n{inside}\n```")
        note = "was not used: the check runs as it was released"
        bench.notes.append(f"what was typed into {grade_id(original)} ({first_line(inside)}) {note}")
    if code.strip():
        bench.insert(bench.at(cell), "code", code)
        note = "was kept in a cell of its own above it"
        bench.notes.append(f"what was typed into {grade_id(original)} ({first_line(code)}) {note}")
