"""A lab's exercises, run in this process: what the check says of an answer. tools/bank.py tries a bank's answers so.

Left out: what nbgrader does with the notebook around it; tests/test_grade.py runs that.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path

import nbformat

from minigpt.checks import Points, Wrong
from tools import ROOT, settings
from tools.build import convert, release
from tools.figures import Figures
from tools.glossary import Linker
from tools.links import Neighbours
from tools.texts import Document, read

HIDDEN = re.compile(r"^[ \t]*### BEGIN HIDDEN TESTS.*?### END HIDDEN TESTS[^\n]*\n?", re.MULTILINE | re.DOTALL)
PATCHED = ("builtins", "math", "operator", "torch", "torch.testing", "numpy.testing")  # what an answer may patch


@dataclass(frozen=True)
class Outcome:
    """What an exercise's check came to."""

    points: float
    verdict: Wrong | None = None  # None where all is right, or something else went wrong
    error: str = ""  # an error that is no verdict
    stderr: str = ""


class Lab:
    """A lab's cells, from its text: what to run before an exercise, and the checks after it."""

    def __init__(self, path: Path, root: Path = ROOT) -> None:
        text = read(Document(path.relative_to(root)), root, settings.pins(root))
        alone = Neighbours({text.document: text.ledger["title"]}, index=False)
        source = convert(text, root, alone, Linker([]), Figures(), settings.repository(root), settings.pins(root))
        self.name = path.stem
        self.cells = nbformat.reads(source, as_version=4).cells
        student = nbformat.reads(release({self.name: source})[self.name], as_version=4).cells
        self.untouched = {cell.id: cell.source for cell in student}
        self.answers, self.checks, self.points = {}, {}, {}  # of each exercise: code, its check's code, points
        self.check_names: dict[str, str] = {}
        self._before: dict[str, list[str]] = {}
        before: list[str] = []
        last = None
        for cell in self.cells:
            kind = cell.metadata.get("nbgrader", {})
            if cell.cell_type != "code":
                continue
            if kind.get("solution"):
                last = cell.id
                self._before[last] = list(before)
                self.answers[last] = cell.source
                before.append(cell.source)
            elif kind.get("grade") and last:
                self.checks[last], self.points[last] = cell.source, kind.points
                self.check_names[last] = cell.id
                last = None  # a check below a plain cell, such as a training run, needs the whole notebook
            elif {"setup", "parameters"} & set(cell.metadata.get("tags", [])):
                before.append(cell.source)

    def run(self, exercise: str, code: str, hidden: bool = True) -> Outcome:
        """What the check says of ``code`` in the place of ``exercise``.

        Raises ValueError where the set-up before it fails, which is the lab's fault and no answer's.
        """
        namespace = {"__name__": "__main__"}
        with _aside() as said:
            try:
                for source in [*self._before[exercise], self.answers[exercise]]:
                    exec(compile(source, "set-up", "exec"), namespace)
            except (Exception, SystemExit) as error:
                raise ValueError(f"{self.name}: the cells up to {exercise} fail: {_say(error)}") from None
            try:
                exec(compile(code, f"{exercise} answer", "exec"), namespace)
                said.seek(0), said.truncate()  # a student sees what a check cell writes
                check = self.checks[exercise] if hidden else HIDDEN.sub("", self.checks[exercise])
                exec(compile(check, "check", "exec"), namespace)
                given = namespace[self.check_names[exercise].replace("-", "_")]
            except Wrong as verdict:
                return Outcome(0, verdict, stderr=said.getvalue())
            except (Exception, SystemExit) as error:  # an answer may exit, too
                return Outcome(0, error=_say(error), stderr=said.getvalue())
        if isinstance(given, Points):
            return Outcome(given, given.verdict, stderr=said.getvalue())
        return Outcome(self.points[exercise], stderr=said.getvalue())

    def close(self) -> None:
        """Nothing is open."""


def _say(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


@contextlib.contextmanager
def _aside():
    """Stdout dropped, stderr kept, warnings as in a notebook, in a folder of its own; what was patched is put back."""
    patched = [module for name, module in sys.modules.items() if name.split(".")[0] == "minigpt" or name in PATCHED]
    names = [(module, dict(vars(module))) for module in patched]
    before, said = os.getcwd(), io.StringIO()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("default")
        warnings.showwarning = lambda *what, **_: print(warnings.formatwarning(*what[:4]), file=sys.stderr)
        os.chdir(folder)
        try:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
                yield said
        finally:
            os.chdir(before)
            for module, original in names:
                for name, value in original.items():
                    if vars(module).get(name) is not value:
                        setattr(module, name, value)
