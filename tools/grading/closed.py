"""The closed process of one submission: the answers, and of the rest of the notebook what they may lean on.

The lab's own parameters and setup cells run there, in the course's text, and what its other cells import and define;
then, as the notebook is gone through, the answers and the student's own cells. What other cells compute is not there.

    closed.run(cell)                 where it belongs there; a cell that ends the process costs itself
    closed.beside(opened)            a channel: answers are asked here, values of other cells in the notebook's kernel
    with closed.course(check): ...   meanwhile all answers but those of this check are the course's own
"""

from __future__ import annotations

import ast
import contextlib
import sys
from collections.abc import Iterator

from IPython.core.inputtransformer2 import TransformerManager
from nbformat import NotebookNode
from nbgrader.utils import is_grade, is_solution

from minigpt.checks.answers import Channel, Kept, value
from minigpt.checks.process import Process
from minigpt.checks.verdict import Wrong
from tools.grading.box import Box
from tools.grading.judge import SHARED, shared

DEFINES = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class Closed:
    """``cells``: the instructor's version of the lab; ``seconds``: that one request may take."""

    def __init__(self, box: Box, cells: list[NotebookNode], seconds: float | None = None) -> None:
        command = box.command([sys.executable, "-m", "minigpt.checks.answering"])
        self.process = Process(command, cwd=box.cwd, env=box.env, seconds=seconds)
        self.cells = [cell for cell in cells if cell.cell_type == "code"]
        self.given = {cell.id for cell in self.cells} | {cell.source.strip() for cell in self.cells}
        self.answers = {name: cell for cell in self.cells if exercise(cell) for name in names(cell.source)}
        self.ran: list[tuple[str, str]] = []  # (grade_id or "", source) of the student's cells there
        self.trouble: dict[str, str] = {}  # what stopped an answer's cell
        for cell in self.cells:
            if cell in shared(cells):
                self._prepare(cell.source)
            elif not exercise(cell) and not is_grade(cell):
                self._prepare(definitions(cell.source))

    def _prepare(self, source: str) -> None:
        if source and (said := self.process.prepare(source)):
            print(f"closed process: {said}", file=sys.stderr)

    def run(self, cell: NotebookNode) -> None:
        """Run it, as far as answers may lean on it."""
        source = cell.source
        if not exercise(cell) and (cell.id in self.given or source.strip() in self.given):
            if source.strip() in self.given or SHARED & {*cell.metadata.get("tags", [])}:
                return  # the course's own, which is there
            source = definitions(source)  # the course's cell, with the student's changes
        if source.strip():
            said = self.process.run(source)
            self.ran.append((cell.metadata.nbgrader.grade_id if exercise(cell) else "", source))
            if said and exercise(cell):
                self.trouble[cell.metadata.nbgrader.grade_id] = said

    def beside(self, opened: Channel) -> Channel:
        return Both(self, opened)

    @contextlib.contextmanager
    def course(self, check: str) -> Iterator[None]:
        """All answers but those that ``check`` is about are the course's own, in a fresh process."""
        own, earlier = about(self.cells, check)
        ran = self.ran
        mine = [source for name, source in ran if name in own]
        self.process.fresh()
        for source in [source for name, source in ran if not name] + earlier + mine:
            self.process.run(source)
        try:
            yield
        finally:
            self.process.fresh()
            for _, source in ran:
                self.process.run(source)

    def close(self) -> None:
        self.process.close()


class Both(Channel):
    """Answers in the closed process; other values are in the notebook's kernel, and plain ones are handed over."""

    def __init__(self, closed: Closed, opened: Channel) -> None:
        self.closed, self.opened = closed, opened

    def answer(self, name: str):
        if name not in self.closed.answers:
            there = self.opened.answer(name)
            try:
                made = value(there)
            except Wrong:  # too large, or no value
                return there
            return there if isinstance(made, Kept) else made
        try:
            return self.closed.process.answer(name)
        except Wrong as wrong:
            trouble = self.closed.trouble.get(self.closed.answers[name].metadata.nbgrader.grade_id)
            if not trouble:
                raise
            raise Wrong(wrong.id, f"there is no {name}: its cell {sentence(trouble)}") from None


def sentence(trouble: str) -> str:
    """What stopped a cell, after "its cell"."""
    return trouble if trouble.startswith(("ends", "had not ended")) else f"fails with {trouble}"


def exercise(cell: NotebookNode) -> bool:
    """Whether it is a code cell that the student writes and a check judges."""
    return cell.cell_type == "code" and is_solution(cell) and not is_grade(cell)


def about(cells: list[NotebookNode], check: str) -> tuple[set[str], list[str]]:
    """The names of the exercises between a check and the one before it, and the text of those before that."""
    own: list[NotebookNode] = []
    earlier: list[NotebookNode] = []
    for cell in cells:
        if exercise(cell):
            own.append(cell)
        elif is_grade(cell):
            if cell.metadata.nbgrader.grade_id == check:
                break
            earlier, own = earlier + own, []
    return {cell.metadata.nbgrader.grade_id for cell in own}, [cell.source for cell in earlier]


def definitions(source: str) -> str:
    """What a cell imports and defines, without what else it does; nothing where it cannot be read."""
    try:
        tree = ast.parse(TransformerManager().transform_cell(source))
    except SyntaxError:
        return ""
    return "\n".join(ast.unparse(node) for node in tree.body if isinstance(node, DEFINES))


def names(source: str) -> set[str]:
    """The names that an answer's cell gives a value."""
    tree = ast.parse(TransformerManager().transform_cell(source))
    stored = {node.id for each in tree.body for node in ast.walk(each)
              if isinstance(each, (ast.Assign, ast.AnnAssign)) and isinstance(node, ast.Name)
              and isinstance(node.ctx, ast.Store)}  # fmt: skip
    return stored | {node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
