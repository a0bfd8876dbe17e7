"""A lab's exercises, with the answers in a process of their own: what the check here says of an answer there.

The lab's cells before its first exercise run in that process once, an answer in a fork of it. What knows the truth is
there too, as in a notebook, and closed by the same modules.
"""

from __future__ import annotations

import ast

from minigpt.checks import Points, Wrong, answers
from minigpt.checks.process import Process
from tools.bank_lab import HIDDEN, Lab, Outcome, _aside, _say


class Apart(Lab):
    """A lab whose answers run apart from its checks."""

    _process: Process | None = None

    def run(self, exercise: str, code: str, hidden: bool = True) -> Outcome:
        """What the check says of ``code`` in the place of ``exercise``. Raises ValueError where the set-up fails."""
        there = self._there()
        there.fresh()
        before = [*self._before[exercise][len(self._first()) :], self.answers[exercise]]
        check = self.checks[exercise] if hidden else HIDDEN.sub("", self.checks[exercise])
        with _aside() as said, answers.elsewhere(there):
            for source in before:
                if stopped := there.run(source):
                    raise ValueError(f"{self.name}: the cells up to {exercise} fail: {stopped}")
            if stopped := there.run(code):
                return Outcome(0, error=stopped)
            namespace: dict = {"__name__": "__main__"}
            solutions = set(self.answers.values())
            for source in before:
                if source in solutions:
                    namespace |= {name: answers.Answer(name, there) for name in _defined(source)}
            try:
                for source in [*self._first(), *(source for source in before if source not in solutions)]:
                    exec(compile(source, "set-up", "exec"), namespace)
                said.seek(0), said.truncate()
                exec(compile(check, "check", "exec"), namespace)
                given = namespace[self.check_names[exercise].replace("-", "_")]
            except Wrong as verdict:
                return Outcome(0, verdict, stderr=said.getvalue())
            except (Exception, SystemExit) as error:
                return Outcome(0, error=_say(error), stderr=said.getvalue())
        if isinstance(given, Points):
            return Outcome(given, given.verdict, stderr=said.getvalue())
        return Outcome(self.points[exercise], stderr=said.getvalue())

    def close(self) -> None:
        if self._process:
            self._process.close()

    def _first(self) -> list[str]:
        """The cells before the first exercise."""
        return min(self._before.values(), key=len)

    def _there(self) -> Process:
        if self._process is None:
            imported = {name for check in self.checks.values() for name in _imported(check)}
            self._process = Process(modules=sorted(imported))
            for source in self._first():
                if stopped := self._process.prepare(source):
                    raise ValueError(f"{self.name}: the cells before its exercises fail: {stopped}")
        return self._process


def _imported(check: str) -> set[str]:
    """What a check cell imports of the judges, and so closes: modules, and names in them, which are none."""
    found = [node for node in ast.walk(ast.parse(check)) if isinstance(node, ast.ImportFrom)]
    names = {f"{node.module}.{name.name}" for node in found for name in node.names}
    return {name for name in names if name.startswith("minigpt.checks.")}


def _defined(source: str) -> list[str]:
    """The names that a cell gives a value at its top level."""
    names = []
    for node in ast.parse(source).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.append(node.name)
        elif isinstance(node, ast.Assign):
            names += [part.id for target in node.targets for part in ast.walk(target) if isinstance(part, ast.Name)]
    return names
