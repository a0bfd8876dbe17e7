"""The closed process of one submission: the answers, and of the rest of the notebook what they may lean on.

The lab's own parameters and setup cells run there, in the course's text, and what its other cells import and define;
then, as the notebook is gone through, the answers and the student's own cells. What other cells compute is not there.

    closed.run(cell)                 where it belongs there; a cell that ends the process costs itself
    closed.beside(opened)            a channel: answers are asked here, values of other cells in the notebook's kernel
    with closed.course(check): ...   meanwhile all answers but those of this check are the course's own
    with closed.solved(): ...        meanwhile all answers are the course's own
    with closed.alone(check): ...    meanwhile only those cells have run that this check's answers lean on, by name
"""

from __future__ import annotations

import ast
import contextlib
import symtable
import sys
import time
from collections.abc import Iterator

from IPython.core.inputtransformer2 import TransformerManager
from nbformat import NotebookNode
from nbgrader.utils import is_grade, is_solution

from minigpt.checks.answers import Channel, Kept, value
from minigpt.checks.process import Process
from minigpt.checks.verdict import Wrong
from tools.grading.box import Box
from tools.grading.judge import SHARED, shared

QUICK = 3  # seconds; cells that take longer run once
# What lies beside the notebook is there for a child's cells, and hides no module from the process that starts it.
ANSWERING = "import sys; del sys.path[0]; from minigpt.checks.answering import main; main()"
DEFINES = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class Closed:
    """``cells``: the instructor's version of the lab; ``seconds``: that one request may take."""

    def __init__(self, box: Box, cells: list[NotebookNode], seconds: float | None = None) -> None:
        command = box.command([sys.executable, "-c", ANSWERING])
        self.process = Process(command, cwd=box.cwd, env=box.env, seconds=seconds)
        self.cells = [cell for cell in cells if cell.cell_type == "code"]
        self.given = {cell.id for cell in self.cells} | {cell.source.strip() for cell in self.cells}
        self.answers = {name: cell for cell in self.cells if exercise(cell) for name in names(cell.source)}
        self.ran: list[tuple[str, str]] = []  # (grade_id or "", source) of the student's cells there
        self.trouble: dict[str, str] = {}  # what stopped an answer's cell
        self.spent = 0.0  # seconds that the student's cells took
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
            begun = time.monotonic()
            said = self.process.run(source)
            self.spent += time.monotonic() - begun
            self.ran.append((cell.metadata.nbgrader.grade_id if exercise(cell) else "", source))
            if said and exercise(cell):
                self.trouble[cell.metadata.nbgrader.grade_id] = said

    def beside(self, opened: Channel) -> Channel:
        return Both(self, opened)

    def anew(self) -> None:
        """What answers have done to their process, when they were called, is undone: all cells run again."""
        if self.spent < QUICK:
            self.process.anew()

    def course(self, check: str) -> contextlib.AbstractContextManager[None]:
        own, earlier = about(self.cells, check)
        mine = [source for name, source in self.ran if name in own]
        return self._with([source for name, source in self.ran if not name] + earlier + mine)

    def solved(self) -> contextlib.AbstractContextManager[None]:
        return self._with([cell.source for cell in self.cells if exercise(cell)])

    def alone(self, check: str) -> contextlib.AbstractContextManager[None] | None:
        """None where all cells that are left out only define something: these can have spoilt nothing."""
        judge = next(cell for cell in self.cells if is_grade(cell) and cell.metadata.nbgrader.grade_id == check)
        ran = [source for _, source in self.ran]
        there = {name for cell in self.cells if not exercise(cell) for name in names(cell.source)}
        needed = leaning(ran, parameters(judge.source), there)
        return self._with(needed) if any(acts(source) for source in ran if source not in needed) else None

    @contextlib.contextmanager
    def _with(self, cells: list[str]) -> Iterator[None]:
        """These have run in a fresh process; afterwards those that had run before."""
        self.process.fresh()
        for source in cells:
            self.process.run(source)
        try:
            yield
        finally:
            self.process.fresh()
            for _, source in self.ran:
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


def parsed(source: str) -> ast.Module:
    """Nothing, where it cannot be read."""
    try:
        return ast.parse(TransformerManager().transform_cell(source))
    except (SyntaxError, ValueError):
        return ast.Module([], [])


def definitions(source: str) -> str:
    """What a cell imports and defines, without what else it does; nothing where it cannot be read."""
    return "\n".join(ast.unparse(node) for node in parsed(source).body if isinstance(node, DEFINES))


def top(tree: ast.AST) -> Iterator[ast.AST]:
    """What runs when a cell does: all of it but the insides of functions and classes."""
    for node in ast.iter_child_nodes(tree):
        yield node
        if not isinstance(node, (*DEFINES, ast.Lambda)):
            yield from top(node)


def names(source: str) -> set[str]:
    """The names that a cell gives a value, by an import, too."""
    found = list(top(parsed(source)))
    imported = {(alias.asname or alias.name).split(".")[0] for node in found
                if isinstance(node, (ast.Import, ast.ImportFrom)) for alias in node.names}  # fmt: skip
    stored = {node.id for node in found if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return imported | stored | {node.name for node in found if isinstance(node, DEFINES[2:])}


def reads(source: str) -> set[str]:
    """The names of the notebook that a cell reads, in its functions, too."""
    tables = [symtable.symtable(ast.unparse(parsed(source)), "cell", "exec")]
    for table in tables:
        tables += table.get_children()
    return {each.get_name() for table in tables for each in table.get_symbols()
            if each.is_referenced() and (table is tables[0] or each.is_global())}  # fmt: skip


def acts(source: str) -> bool:
    """Whether a cell does anything when it runs but define, give values to names, and fail."""
    for node in parsed(source).body:
        plain = isinstance(node, (*DEFINES, ast.Raise)) or isinstance(getattr(node, "value", None), ast.Constant)
        if not plain or isinstance(node, ast.Assign) and not all(isinstance(to, ast.Name) for to in node.targets):
            return True
    return False


def parameters(check: str) -> set[str]:
    """The answers that a check looks at."""
    functions = [node for node in parsed(check).body if isinstance(node, ast.FunctionDef)]
    return {each.arg for node in functions for each in (*node.args.args, *node.args.kwonlyargs)}


def leaning(cells: list[str], wanted: set[str], there: set[str]) -> list[str]:
    """Of these cells those that give a wanted name a value, and what they lean on in turn beside what is ``there``."""
    needed: set[str] = set()
    while more := [source for source in cells if source not in needed and names(source) & wanted]:
        needed.update(more)
        wanted = wanted.union(*(reads(source) - names(source) for source in more)) - there
    return [source for source in cells if source in needed]
