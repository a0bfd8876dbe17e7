"""Run a lab's bank of wrong and right answers against its checks: ``python -m tools.bank [LAB ...]``.

A bank lies beside the lab's text, ``content/labs/labNN-name.bank.py``, and is never released. Its sections each
replace one exercise cell:

    # %% exercise=count-linear wrong="a bias is counted" verdict=bias
    def count_linear(n_in, n_out):
        return n_in * n_out + n_out

    # %% exercise=count-linear right="written with numpy"
    ...

``wrong`` is the mistake in words, and ``verdict`` the id of what the check must say (``checks.Wrong``), several joined
by "+"; ``points`` is what the answer keeps, where that is not 0. ``right`` says how the answer is written. A wrong
answer must get this verdict and these points; a right one must get all points and leave nothing on stderr. Both run in
this process, in a fresh namespace: the lab's set-up and the instructor's answers up to this exercise, then the entry,
then the exercise's check. So an entry defines what it has otherwise, and no more: of a cell with three functions it may
give one. The table also says what the hidden tests alone catch.

Left out: what nbgrader does with the notebook around it; tests/test_grade.py runs that.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import os
import re
import shlex
import sys
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path

import nbformat

from minigpt.checks import Points, Wrong
from tools import ROOT
from tools.build import Document, convert, release, settings

HEADER = re.compile(r"^[ \t]*#[ \t]*%%(.*)$", re.MULTILINE)  # any that looks like one: none is taken for code
ID = r"[a-z0-9-]+([+][a-z0-9-]+)*"
HIDDEN = re.compile(r"^[ \t]*### BEGIN HIDDEN TESTS.*?### END HIDDEN TESTS[^\n]*\n?", re.MULTILINE | re.DOTALL)
PATCHED = ("builtins", "math", "operator", "torch", "torch.testing", "numpy.testing")  # what an answer may patch


@dataclass(frozen=True)
class Entry:
    """One answer of a bank. ``verdict`` is empty exactly for a right one."""

    exercise: str
    title: str  # the mistake in words, or how the answer is written
    code: str
    verdict: frozenset[str] = frozenset()  # ids
    points: float = 0  # that a wrong answer keeps

    @property
    def kind(self) -> str:
        return "wrong" if self.verdict else "right"


@dataclass(frozen=True)
class Outcome:
    """What an exercise's check came to."""

    points: float
    verdict: Wrong | None = None  # None where all is right, or something else went wrong
    error: str = ""  # an error that is no verdict
    stderr: str = ""


@dataclass(frozen=True)
class Judgement:
    """What the check said about one entry."""

    lab: str
    entry: Entry
    outcome: Outcome
    fault: str | None  # why the entry did not fare as it should; None when it did
    hidden_only: bool = False  # only the hidden tests catch it

    @property
    def line(self) -> str:
        mark, verdict = "FAIL" if self.fault else "ok", self.outcome.verdict
        what = self.fault or (f"{verdict.id}: {verdict}" if verdict else "passes")
        what = what.splitlines()[0] if self.fault or len(what) <= 130 else what.splitlines()[0][:127] + "..."
        keeps = f" [keeps {self.outcome.points:g}]" if verdict and self.outcome.points else ""
        hidden = " [hidden]" if self.hidden_only else ""
        start = f"{mark:5}{self.lab[:5]:7}{self.entry.exercise:18}{self.entry.kind:7}"
        return f"{start}{self.entry.title:52}  {what}{keeps}{hidden}"


def read_bank(path: Path) -> list[Entry]:
    """The entries of one bank, in order. Raises ValueError naming the line of a broken header."""
    text = path.read_text(encoding="utf8")
    headers = list(HEADER.finditer(text))
    if not headers:
        raise ValueError(f"{path.name} has no entries; each begins with a line '# %% exercise=NAME wrong=... says=...'")
    entries = []
    for header, following in zip(headers, [*headers[1:], None]):
        line = text.count("\n", 0, header.start()) + 1
        try:
            fields = dict(part.split("=", 1) for part in shlex.split(header[1]))
            kind = "wrong" if "wrong" in fields else "right"
            wanted = {"exercise", "wrong", "verdict"} if kind == "wrong" else {"exercise", "right"}
            found = set(fields) - ({"points"} if kind == "wrong" else set())
            if not header[0].startswith("# %% ") or found != wanted or not all(fields.values()):
                raise ValueError("write '# %% ', exercise= and wrong= and verdict=, or right=; none of them empty")
            ids, points = fields.get("verdict", ""), float(fields.get("points", 0))
            if not re.fullmatch(ID, ids) and ids:
                raise ValueError(f"verdict is {ids!r}; it must be an id in kebab-case, or several joined by +")
            code = text[header.end() + 1 : following.start() if following else len(text)].strip("\n") + "\n"
            verdict = frozenset(filter(None, ids.split("+")))
            entries.append(Entry(fields["exercise"], fields[kind], code, verdict, points))
        except ValueError as error:
            raise ValueError(f"{path.name}, line {line}: {error}") from None
    return entries


class Lab:
    """A lab's cells, from its text: what to run before an exercise, and the checks after it."""

    def __init__(self, path: Path, root: Path = ROOT) -> None:
        document = Document(path.relative_to(root))
        source = convert(document, root, settings.repository(root), settings.pins(root))
        self.name = path.stem
        self.cells = nbformat.reads(source, as_version=4).cells
        student = nbformat.reads(release({self.name: source})[self.name], as_version=4).cells
        self.untouched = {cell.id: cell.source for cell in student}
        self.answers, self.checks, self.points = {}, {}, {}  # of each exercise: code, its check's code, points
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
                given = _value(check, namespace)
            except Wrong as verdict:
                return Outcome(0, verdict, stderr=said.getvalue())
            except (Exception, SystemExit) as error:  # an answer may exit, too
                return Outcome(0, error=_say(error), stderr=said.getvalue())
        if isinstance(given, Points):
            return Outcome(given, given.verdict, stderr=said.getvalue())
        return Outcome(self.points[exercise], stderr=said.getvalue())


def _value(source: str, namespace: dict):
    """The value of a cell's last line, where it is an expression, as in a notebook."""
    tree = ast.parse(source, "check")
    last = tree.body[-1]
    if isinstance(last, ast.Expr):
        del tree.body[-1]
    exec(compile(tree, "check", "exec"), namespace)
    return eval(compile(ast.Expression(last.value), "check", "eval"), namespace) if isinstance(last, ast.Expr) else None


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


def judge(lab: Lab, entry: Entry) -> Judgement:
    """Whether the check treats this entry as it should."""
    if entry.exercise not in lab.answers:
        raise ValueError(f"the bank of {lab.name} names exercise {entry.exercise!r}; there is {', '.join(lab.answers)}")
    outcome = lab.run(entry.exercise, entry.code)
    full, fault, hidden_only = lab.points[entry.exercise], None, False
    found = outcome.verdict.ids if outcome.verdict else frozenset()
    if outcome.error:
        fault = f"it ends in an error that is no verdict: {outcome.error}"
    elif found != entry.verdict:
        said = f"{'+'.join(sorted(found))}: {outcome.verdict}" if found else "nothing"
        fault = f"the verdict is {said}; {'+'.join(sorted(entry.verdict)) or 'none'} is asked for"
    elif outcome.points != (entry.points if entry.verdict else full):
        fault = f"it gets {outcome.points:g} of {full:g} points, not {entry.points:g}"
    elif not entry.verdict and outcome.stderr:
        fault = f"the check writes to stderr: {outcome.stderr.strip()}"
    elif entry.verdict:
        hidden_only = lab.run(entry.exercise, entry.code, hidden=False).points == full
    return Judgement(lab.name, entry, outcome, fault, hidden_only)


def banks(root: Path = ROOT) -> list[Path]:
    """The labs' texts that have a bank, in order. Raises ValueError for a bank without a lab."""
    found = sorted((root / "content" / "labs").glob("*.bank.py"))
    texts = [path.with_name(path.name.replace(".bank.py", ".md")) for path in found]
    for path in texts:
        if not path.exists():
            raise ValueError(f"{path.stem}.bank.py has no lab beside it")
    return texts


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.bank", description=__doc__.splitlines()[0])
    parser.add_argument("labs", nargs="*", metavar="LAB", help="only these, as lab01")
    names = parser.parse_args(argv).labs
    faults = count = 0
    try:
        texts = [path for path in banks() if not names or path.stem in names or path.stem.split("-")[0] in names]
        if not texts:
            raise ValueError(f"no bank of {', '.join(names) or 'any lab'} in content/labs/")
        for path in texts:
            lab = Lab(path)
            for entry in read_bank(path.with_suffix(".bank.py")):
                judgement = judge(lab, entry)
                print(judgement.line, flush=True)
                count, faults = count + 1, faults + bool(judgement.fault)
    except (ValueError, OSError) as error:
        print(f"bank: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"bank: stopped after {count} answers", file=sys.stderr)
        return 130
    print(f"{count} answers, {faults} not judged as they should be")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
