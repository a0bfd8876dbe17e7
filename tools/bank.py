"""Run a lab's bank of wrong and right answers against its checks: ``python -m tools.bank [LAB ...]``.

A bank lies beside the lab's text, ``content/labs/labNN-name.bank.py``, and is never released. Its sections each
replace one exercise cell:

    # %% exercise=count-linear wrong="a bias is counted" says="bias"
    def count_linear(n_in, n_out):
        return n_in * n_out + n_out

    # %% exercise=count-linear right="written with numpy"
    ...

``wrong`` is the mistake in words, and ``says`` a regular expression that the diagnosis must match; ``right`` says how
the answer is written. A wrong answer must end in an AssertionError that names its mistake; a right one must pass and
leave nothing on stderr. Both run in this process, in a fresh namespace: the lab's set-up and the instructor's answers
up to this exercise, then the entry, then the exercise's checks. So an entry defines what it has otherwise, and no more:
of a cell with three functions it may give one. The table also says what the hidden tests alone catch.

Left out: what nbgrader does with the notebook around it; tests/test_grade.py runs that.
"""

from __future__ import annotations

import argparse
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

from tools import ROOT
from tools.build import Document, convert, release, settings

HEADER = re.compile(r"^[ \t]*#[ \t]*%%(.*)$", re.MULTILINE)  # any that looks like one: none is taken for code
HIDDEN = re.compile(r"^[ \t]*### BEGIN HIDDEN TESTS.*?### END HIDDEN TESTS[^\n]*\n?", re.MULTILINE | re.DOTALL)
PATCHED = ("builtins", "math", "operator", "torch", "torch.testing", "numpy.testing")  # what an answer may patch


@dataclass(frozen=True)
class Entry:
    """One answer of a bank. ``says`` is None exactly for a right one."""

    exercise: str
    title: str  # the mistake in words, or how the answer is written
    says: str | None
    code: str

    @property
    def kind(self) -> str:
        return "right" if self.says is None else "wrong"


@dataclass(frozen=True)
class Verdict:
    """What the checks said about one entry."""

    lab: str
    entry: Entry
    fault: str | None  # why the entry did not fare as it should; None when it did
    diagnosis: str  # the check's words; empty for a pass
    hidden_only: bool = False  # only the hidden tests catch it

    @property
    def line(self) -> str:
        mark = "FAIL" if self.fault else "ok"
        what = (self.fault or self.diagnosis or "passes").splitlines()[0]
        what = what if len(what) <= 130 or self.fault else what[:127] + "..."
        hidden = " [hidden]" if self.hidden_only else ""
        start = f"{mark:5}{self.lab[:5]:7}{self.entry.exercise:18}{self.entry.kind:7}"
        return f"{start}{self.entry.title:52}  {what}{hidden}"


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
            wanted = {"exercise", "wrong", "says"} if kind == "wrong" else {"exercise", "right"}
            if not header[0].startswith("# %% ") or set(fields) != wanted or not all(fields.values()):
                raise ValueError("write '# %% ', exercise= and either wrong= and says=, or right=; none of them empty")
            code = text[header.end() + 1 : following.start() if following else len(text)].strip("\n") + "\n"
            entries.append(Entry(fields["exercise"], fields[kind], fields.get("says"), code))
            re.compile(fields.get("says", ""))
        except (ValueError, re.error) as error:
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
        self.answers, self.checks = {}, {}  # {exercise: code}, {exercise: [check code]}
        self._before: dict[str, list[str]] = {}
        before, last = [], None
        for cell in self.cells:
            kind = cell.metadata.get("nbgrader", {})
            if cell.cell_type != "code":
                continue
            if kind.get("solution"):
                last = cell.id
                self._before[last] = list(before)
                self.answers[last], self.checks[last] = cell.source, []
                before.append(cell.source)
            elif kind.get("grade"):
                self.checks.get(last, []).append(cell.source)
            elif {"setup", "parameters"} & set(cell.metadata.get("tags", [])):
                before.append(cell.source)
            elif self.checks.get(last):  # a check below a plain cell, such as a training run, needs the whole notebook
                last = None

    def run(self, exercise: str, code: str, hidden: bool = True) -> tuple[str | None, str, str]:
        """Run ``code`` in the place of ``exercise``: (why it lost its points or None, the kind of error, stderr).

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
                said.seek(0), said.truncate()  # nbgrader looks at the check cells' stderr only
                for source in self.checks[exercise]:
                    source = source if hidden else HIDDEN.sub("", source)
                    exec(compile(source, f"{exercise} check", "exec"), namespace)
            except (Exception, SystemExit) as error:  # an answer may exit, too
                return str(error), type(error).__name__, said.getvalue()
        return None, "", said.getvalue()


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
        warnings.showwarning = lambda *what, **_: sys.stderr.write(warnings.formatwarning(*what[:4]))
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


def judge(lab: Lab, entry: Entry) -> Verdict:
    """Whether the checks treat this entry as they should."""
    if entry.exercise not in lab.answers:
        raise ValueError(f"the bank of {lab.name} names exercise {entry.exercise!r}; there is {', '.join(lab.answers)}")
    message, kind, stderr = lab.run(entry.exercise, entry.code)
    fault, hidden_only = None, False
    if entry.says is None:
        if message is not None:
            fault = f"a right answer fails: {kind}: {message}"
        elif stderr:
            fault = f"the check writes to stderr: {stderr.strip()}"
    elif message is None:
        fault = "a wrong answer passes"
    elif kind != "AssertionError":
        fault = f"it ends in {kind}, not in a diagnosis: {message}"
    elif not re.search(entry.says, message):
        fault = f"the diagnosis does not say {entry.says!r}: {message}"
    else:
        hidden_only = lab.run(entry.exercise, entry.code, hidden=False)[0] is None
    return Verdict(lab.name, entry, fault, message or "", hidden_only)


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
                verdict = judge(lab, entry)
                print(verdict.line, flush=True)
                count, faults = count + 1, faults + bool(verdict.fault)
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
