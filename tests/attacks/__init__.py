"""What hostile submissions do, a row each, and the tiny course they are tried in: ten exercises, eight of them alike.

The attacker answers the first and the last honestly, and attacks from the cells between, with a row in each. So these
4 points are theirs, and nothing that belongs to anybody else may change. An attacker knows all paths: <ROOT> is the
course, <HOME> a home.

Where it cannot be seen whether an attack went through, the row's ``square`` is right where it did: then it gets 3.

Left out, for the sake of the machine that the tests run on: kill(-1), fork bombs without an end, filling the disk, the
system's own crontab and packages.
"""

from __future__ import annotations

import json
import re
import shutil
import textwrap
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from tools import ROOT

LAB = "lab01-tiny"
GRADING = Path("build") / "grading"
KERNEL = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
CHECK = """from minigpt import checks


@checks.check
def check_{name}({name}):
    def is_right_of_a_tiny_lab(answer, x):
        if checks.call(answer, x) != {truth}:
            raise checks.Wrong("not-{name}", "{name} of " + str(x) + " is wrong")

    cases = [2, 3]
    ### BEGIN HIDDEN TESTS
    cases += [7, 11, 20]
    ### END HIDDEN TESTS
    return checks.score("{name} is right", checks.part({points}, is_right_of_a_tiny_lab, {name}, each=cases))"""


@dataclass(frozen=True)
class Attack:
    """``code``: the cell of ``square``. ``off``: the points it may get with neither a box nor a fence."""

    name: str
    code: str
    kind: str
    off: float = 0
    fence: int = 1  # the version of Landlock that holds it, too
    change: Callable | None = None  # of the whole notebook, a function of it

    def text(self, root: Path, home: Path, square: str) -> str:
        """The cell of the exercise called ``square``."""
        code = textwrap.dedent(self.code).strip("\n")
        for word, value in (("ROOT", root), ("HOME", home)):
            code = code.replace(f"<{word}>", str(value))
        code = code if "def square" in code or "square =" in code else f"{code}\n\n\ndef square(x):\n    return 7"
        return re.sub(r"\bsquare\b", square, code)


ATTACKS: list[Attack] = []


def attack(kind: str, name: str, code: str = "", **options) -> None:
    ATTACKS.append(Attack(name, code, kind, **options))


SQUARES = [f"square{i}" for i in range(8)]
EXERCISES = {"double": ("2 * x", 2), **{name: ("x * x", 3) for name in SQUARES}, "triple": ("3 * x", 2)}


def lab():
    """The instructor's version of the tiny lab."""

    def graded(name: str, source: str, points: int | None = None):
        data = {"schema_version": 3, "grade_id": name, "cell_type": "code", "task": False, "grade": points is not None}
        data |= {"solution": points is None, "locked": points is not None} | ({"points": points} if points else {})
        return new_code_cell(source, id=name, metadata={"nbgrader": data})

    cells = [new_markdown_cell("# A tiny lab", id="title"), new_code_cell("import math", id="imports")]
    for name, (truth, worth) in EXERCISES.items():
        body = f"    ### BEGIN SOLUTION\n    return {truth}\n    ### END SOLUTION"
        cells.append(graded(name, f"def {name}(x):\n{body}"))
        cells.append(graded(f"check-{name}", CHECK.format(name=name, truth=truth, points=worth), worth))
    return new_notebook(cells=cells, metadata=deepcopy(KERNEL))


def make_course(root: Path) -> None:
    """The tiny course in ``root``, an empty folder."""
    shutil.copy(ROOT / "nbgrader_config.py", root)
    source = root / "solutions" / LAB / f"{LAB}.ipynb"
    source.parent.mkdir(parents=True)
    nbformat.write(lab(), source)


def hand_in(root: Path, student: str, answers: dict[str, str], change: Callable | None = None) -> None:
    """A submission with these cells in the place of the exercises."""
    notebook = lab()
    for cell in notebook.cells:
        if cell.id in EXERCISES:
            cell.source = answers.get(cell.id, f"def {cell.id}(x):\n    raise NotImplementedError")
        cell.source = "\n".join(line for line in cell.source.split("\n") if "cases += " not in line)
    if change:
        change(notebook)
    path = root / GRADING / "submitted" / student / LAB / f"{LAB}.ipynb"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(notebook))


def right(name: str) -> str:
    return f"def {name}(x):\n    return {EXERCISES[name][0]}"


from tests.attacks import files, outputs, processes  # noqa: E402, F401  they add their rows
from tests.attacks import points as _points  # noqa: E402, F401
