"""A right answer that warns gets full marks, and a wrong one that warns gets none: graded end to end.

In a lab of numbers, modules, gradients and runs. Labs stand one after another
in one notebook, so that torch is loaded once.

Left out: the other labs; what lies below a lab's last check.
"""

import ast
import csv
import shutil
from copy import deepcopy

import nbformat
import pytest
from nbformat.v4 import new_notebook

from tools import ROOT, grade
from tools.grade_one import GRADING
from tools.grading.notebook import read
from tools.grading.task import SUBMITTED

LAB, JOINED = "lab07-noisy", ("lab07-lora",)  # more stand in one notebook where they close the same book
NOISE = """
def noise(calls=[]):
    import logging, sys, warnings
    import torch, tqdm
    calls.append(1)
    if len(calls) < 4:  # a run calls an answer ten thousand times
        warnings.warn("this will change", FutureWarning)
        print("by the way", file=sys.stderr)
        logging.getLogger("student").warning("by the way")
        torch.tensor(torch.ones(1))
        list(tqdm.tqdm(range(2)))
"""
WRONG = """
noise()
get_ipython().displayhook(1)  # a number of points, as nbgrader takes it
return 7
"""


class Noisy(ast.NodeTransformer):
    """Every function of an answer makes noise first; if wrong, that is all it does, but for a false claim."""

    def __init__(self, wrong: bool):
        self.wrong = wrong

    def visit_FunctionDef(self, function):
        function.body = ast.parse(WRONG).body if self.wrong else [*ast.parse("noise()").body, *function.body]
        return function


def labs() -> list:
    """The code cells of the labs, with the lab in front of each name, and of each check's function."""
    cells = []
    for name in JOINED:
        code = [cell for cell in read(ROOT / "solutions" / name / f"{name}.ipynb").cells if cell.cell_type == "code"]
        last = max(i for i, cell in enumerate(code) if kind(cell).get("grade"))
        for cell in code[: last + 1]:
            function = f"def {cell.id.replace('-', '_')}("
            cell.id = f"{name[:5]}-{cell.id}"
            if kind(cell):
                cell.metadata.nbgrader.grade_id = cell.id
            if kind(cell).get("grade"):
                assert cell.source.count(function) == 1
                cell.source = cell.source.replace(function, f"def {cell.id.replace('-', '_')}(")
        cells += code[: last + 1]
    return cells


def kind(cell) -> dict:
    return cell.metadata.get("nbgrader", {})


def noisy(notebook, wrong: bool):
    notebook = deepcopy(notebook)
    for cell in notebook.cells:
        if kind(cell).get("solution"):
            cell.source = NOISE + ast.unparse(Noisy(wrong).visit(ast.parse(cell.source)))
        elif wrong and not kind(cell) and not cell.metadata.get("tags"):
            cell.source = ""  # a run: it takes long, and a wrong answer gets nowhere
    return notebook


@pytest.fixture(scope="module")
def points(tmp_path_factory) -> dict[str, dict[str, tuple[float, float]]]:
    """{student: {check: (points, out of)}}."""
    root = tmp_path_factory.mktemp("course")
    shutil.copy(ROOT / "nbgrader_config.py", root)
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    notebook = new_notebook(cells=labs(), metadata=kernel)
    students = {"right": noisy(notebook, wrong=False), "wrong": noisy(notebook, wrong=True)}
    paths = {root / "solutions" / LAB: notebook}
    paths |= {root / SUBMITTED / student / LAB: submission for student, submission in students.items()}
    for folder, content in paths.items():
        folder.mkdir(parents=True)
        nbformat.write(content, folder / f"{LAB}.ipynb")
    grade.main(["--root", str(root)])
    with open(root / GRADING / "points.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    return {who: {row["exercise"]: (float(row["score"]), float(row["max_score"])) for row in rows
                  if row["student"] == who} for who in students}  # fmt: skip


@pytest.mark.slow
def test_warnings_cost_a_right_answer_nothing_and_give_a_wrong_one_nothing(points):
    checks = {cell.id for cell in labs() if kind(cell).get("grade")}
    assert checks == set(points["right"]) == set(points["wrong"])
    assert {name: score for name, (score, most) in points["right"].items() if score != most} == {}
    assert {name: score for name, (score, _) in points["wrong"].items() if score} == {}
