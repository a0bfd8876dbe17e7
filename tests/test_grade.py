"""Grading a tiny lab with nbgrader itself, and the repairs that come before it.

The lab has two exercises (2 and 3 points). Nine people hand in: one kills the kernel, and its name comes first.
"""

import csv
import json
import shutil
import textwrap
import warnings
from copy import deepcopy
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from nbgrader.utils import determine_grade

from tests.test_report import Loads
from tools import ROOT, grade
from tools.grade_one import GRADING, settings
from tools.grading.feedback import readable
from tools.grading.gradebook import release
from tools.grading.notebook import read
from tools.grading.repair import repair
from tools.grading.submission import check
from tools.grading.task import SUBMITTED

LAB = "lab01-tiny"
KERNEL = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
HIDDEN = "### BEGIN HIDDEN TESTS\nassert double(5) == 10\n### END HIDDEN TESTS"
CHECK = 'from minigpt import checks\n\n\n@checks.check\ndef {}({}):\n    with checks.judging("it is right"):\n'
SQUARE = """from minigpt import checks


@checks.check
def square_check(square):
    def is_right(answer, x):
        if checks.call(answer, x) != x * x:
            raise checks.Wrong("differs", "square is wrong")

    return checks.score("square", *(checks.part(1.5, is_right, square, each=[x]) for x in (3, 2)))
"""
ANSWERS = {"double": "return 2 * x", "square": "return x * x"}


def graded(name: str, source: str, points: int | None = None):
    metadata = {"schema_version": 3, "grade_id": name, "cell_type": "code", "task": False}
    metadata |= {"grade": points is not None, "solution": points is None, "locked": points is not None}
    return new_code_cell(source, id=name, metadata={"nbgrader": metadata | ({"points": points} if points else {})})


def check_cell(name: str, answer: str, asserts: str, points: int):
    """A check in the form that the build asks for, of some asserts about what ``answer`` gives."""
    body = textwrap.indent(asserts.replace(f"{answer}(", f"checks.call({answer}, "), " " * 8)
    return graded(name, CHECK.format(name.replace("-", "_"), answer) + body, points)


def answer(name: str, body: str):
    return graded(name, f"def {name}(x):\n    ### BEGIN SOLUTION\n    {body}\n    ### END SOLUTION")


def source_notebook():
    cells = [
        new_markdown_cell("# A tiny lab\n\n$10^9$ bytes, [a lesson](../lessons/01.ipynb)", id="title"),
        new_code_cell("import math", id="imports"),
        answer("double", ANSWERS["double"]),
        check_cell("double-check", "double", f"assert double(2) == 4\n{HIDDEN}", 2),
        answer("square", ANSWERS["square"]),
        graded("square-check", SQUARE, 3),
    ]
    return new_notebook(cells=cells, metadata=KERNEL)


def solved(notebook, *names: str, body: str | None = None):
    """A copy of the student version with these exercises answered."""
    notebook = deepcopy(notebook)
    for name in names:
        cell = next(cell for cell in notebook.cells if cell.id == name)
        cell.source = f"def {name}(x):\n    {body or ANSWERS[name]}"
    return notebook


@pytest.fixture(scope="module")
def course(tmp_path_factory) -> tuple[Path, nbformat.NotebookNode]:
    """A course with one lab, made by nbgrader from its source, and the student version."""
    root = tmp_path_factory.mktemp("course")
    shutil.copy(ROOT / "nbgrader_config.py", root)
    source = root / "solutions" / LAB / f"{LAB}.ipynb"
    source.parent.mkdir(parents=True)
    nbformat.write(source_notebook(), source)
    return root, read(release(root, LAB))


def hand_in(root: Path, student: str, notebook, name: str = f"{LAB}.ipynb") -> Path:
    path = root / SUBMITTED / student / LAB / name
    path.parent.mkdir(parents=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some of them are broken on purpose
        path.write_text(json.dumps(notebook))
    return path


@pytest.fixture(scope="module")
def grades(course):
    """{student: Grade} and the command's exit code."""
    root, student_version = course
    hand_in(root, "a-killer", solved(student_version, "double", body="import os; os._exit(137)"))
    hand_in(root, "instructor", source_notebook())
    hand_in(root, "untouched", student_version)
    hand_in(root, "half", solved(student_version, "square"))
    hand_in(root, "partly", solved(student_version, "square", body="return 9"))
    hand_in(root, "forger", solved(student_version, "double", body="get_ipython().displayhook(2); return 0"))
    copied = solved(student_version, "double", "square")
    position = next(i for i, cell in enumerate(copied.cells) if cell.id == "double")
    copied.cells.insert(position, solved(student_version, "double", body="return 3 * x").cells[position])
    copied.cells.append(deepcopy(copied.cells[-1]))
    hand_in(root, "copied", copied)
    stripped = solved(student_version, "double")
    stripped.nbformat_minor = 4
    for cell in stripped.cells:
        cell.metadata = {}
        del cell["id"]
    hand_in(root, "stripped", stripped, "lab01-tiny (1).ipynb")
    hand_in(root, "not-a-notebook", {"cells": 3})
    code = grade.main(["--root", str(root)])
    with open(root / GRADING / "scores.csv", newline="") as file:
        return {row["student"]: row for row in csv.DictReader(file)}, code


@pytest.mark.parametrize(
    "student, score",
    [("instructor", 5), ("untouched", 0), ("half", 3), ("partly", 1.5), ("forger", 0), ("copied", 5), ("stripped", 2)],
)
def test_everyone_gets_the_points_they_earned(grades, student, score):
    row = grades[0][student]
    assert (row["status"], float(row["score"]), float(row["max_score"])) == ("graded", score, 5), row["notes"]


def test_who_cannot_be_graded_has_a_stated_result_and_stops_nobody(grades):
    rows, code = grades
    assert code == 1 and len(rows) == 9
    row = rows["not-a-notebook"]
    assert row["status"] == "failed" and row["score"] == "" and "is not a notebook" in row["notes"]
    assert rows["a-killer"]["status"] == "graded" and float(rows["a-killer"]["score"]) == 0


def test_repairs_are_reported_and_the_original_is_kept(course, grades):
    assert "double was there 2 times" in grades[0]["copied"]["notes"]
    assert "lab01-tiny (1).ipynb was taken for lab01-tiny.ipynb" in grades[0]["stripped"]["notes"]
    assert "the nbgrader metadata of every cell was gone" in grades[0]["stripped"]["notes"]
    original = json.loads((course[0] / SUBMITTED / "stripped" / LAB / "lab01-tiny (1).ipynb").read_text())
    assert all(cell["metadata"] == {} for cell in original["cells"])


def test_points_of_each_exercise_and_feedback_are_written(course, grades):
    with open(course[0] / GRADING / "points.csv", newline="") as file:
        points = {(row["student"], row["exercise"]): float(row["score"]) for row in csv.DictReader(file)}
    assert points["half", "double-check"] == 0 and points["half", "square-check"] == 3
    page = course[0] / GRADING / "feedback" / "half" / LAB / f"{LAB}.html"
    text = page.read_text()
    assert "NotImplementedError" in text
    assert Loads(text).found == [] and "<msup>" in text and "$10^9$" not in text
    assert {"#double-check", "#square-check"} <= {*Loads(text).ids} and "Test cell" not in text
    assert ">double-check</a> (A tiny lab)</td><td>0 of 2</td>" in text  # each check by its name
    assert "01.ipynb" not in text and "pre-wrap" in text  # that lesson lies elsewhere; a long line breaks
    assert not (course[0] / "labs").exists()  # grading leaves the committed student version alone


def test_a_mark_scheme_has_a_students_heading_and_is_folded():
    text = "Why?\n\n### BEGIN MARK SCHEME\nIt is shared (2 points).\n### END MARK SCHEME"
    folded = "<details>\n<summary>How it is graded</summary>\n\nIt is shared (2 points).\n\n</details>"
    assert readable(text, hidden=True) == f"Why?\n\n{folded}"
    assert readable(f"assert double(2) == 4\n{HIDDEN}", hidden=True) == "assert double(2) == 4\nassert double(5) == 10"


def test_grading_one_keeps_the_others_scores(course, grades):
    root = course[0]
    assert grade.main(["--root", str(root), "--student", "not-a-notebook"]) == 1
    with open(root / GRADING / "scores.csv", newline="") as file:
        assert {row["student"]: row for row in csv.DictReader(file)} == grades[0]


def test_nothing_submitted_is_one_sentence(tmp_path, capsys):
    shutil.copy(ROOT / "nbgrader_config.py", tmp_path)
    assert grade.main(["--root", str(tmp_path)]) == 2
    complaint = capsys.readouterr().err
    assert complaint.count("\n") == 1 and "build/grading/submitted/STUDENT/LAB" in complaint


@pytest.mark.parametrize("minutes", ["inf", "nan", "0", "-1", "1e300"])
def test_minutes_without_an_end_are_refused(tmp_path, capsys, minutes):
    assert grade.main(["--root", str(tmp_path), "--minutes", minutes]) == 2
    complaint = capsys.readouterr().err
    assert "it must be more than 0" in complaint and complaint.count("\n") == 1


def test_a_broken_course_is_one_sentence(tmp_path, capsys):
    assert grade.main(["--root", str(tmp_path / "nowhere")]) == 2
    assert "nowhere'; there is no such folder" in capsys.readouterr().err
    (tmp_path / "nbgrader_config.py").write_text("c = (")
    assert grade.main(["--root", str(tmp_path)]) == 2
    complaint = capsys.readouterr().err
    assert "nbgrader_config.py: SyntaxError" in complaint and complaint.count("\n") == 1


def test_a_wrong_name_says_what_there_is(course, grades, capsys):
    assert grade.main(["--root", str(course[0]), "--student", "nobody"]) == 2
    assert "--student is 'nobody'; build/grading/submitted has a-killer, copied, forger" in capsys.readouterr().err


# What a check cell's outputs come to. The oracle is nbgrader's own reading of them.

SAID = new_output("stream", name="stderr", text="FutureWarning: soon")
FAILED = new_output("error", ename="AssertionError", evalue="wrong", traceback=[])


def gives(text: str):
    return new_output("execute_result", data={"text/plain": text})


@pytest.mark.parametrize(
    "outputs, points",
    [
        ([], 3), ([SAID], 3), ([SAID, SAID, gives("2.0")], 2), ([gives("0")], 0), ([gives("'text'")], 3),
        ([FAILED], 0), ([SAID, FAILED], 0), ([gives("3"), FAILED], 0), ([FAILED, gives("3")], 0),
        ([gives("3"), gives("1.5")], 1.5), ([gives("1.5"), gives("3")], 1.5), ([gives("1.5"), gives("nan")], 1.5),
    ],
)  # fmt: skip
def test_points_follow_the_verdict_alone(outputs, points):
    cell = graded("check", "", 3)
    cell.outputs = deepcopy(outputs)
    rule = next(rule for _, rule in settings(ROOT).Autograde.autograde_preprocessors._inserts)
    cell, _ = rule().preprocess_cell(cell, {}, 0)
    assert determine_grade(cell) == (points, 3)
    said = [output.text for output in cell.outputs if output.output_type == "stream"]
    assert said == [output.text for output in outputs if output.output_type == "stream"]  # people still read it


# Repairs, one kind at a time. The oracle is the student version: each graded cell once, in its place.


def ids(notebook) -> list[str]:
    return [cell.metadata.nbgrader.grade_id for cell in notebook.cells if "nbgrader" in cell.metadata]


def test_a_good_submission_is_left_alone(course):
    notebook = solved(course[1], "double")
    repaired, notes = repair(deepcopy(notebook), course[1])
    assert notes == [] and repaired == notebook


@pytest.mark.parametrize("name", ["double", "double-check", "square", "square-check"])
def test_a_deleted_cell_comes_back_in_its_place(course, name):
    notebook = deepcopy(course[1])
    notebook.cells = [cell for cell in notebook.cells if cell.id != name]
    repaired, notes = repair(notebook, course[1])
    assert repaired.cells == course[1].cells and f"{name} was deleted" in notes[0]


def test_a_split_answer_keeps_every_line(course):
    notebook = solved(course[1], "double")
    i = next(i for i, cell in enumerate(notebook.cells) if cell.id == "double")
    first = deepcopy(notebook.cells[i])
    first.update(id="split", source="factor = 2")
    notebook.cells.insert(i, first)
    repaired, notes = repair(notebook, course[1])
    assert ids(repaired) == ids(course[1]) and "double was there 2 times" in notes[0]
    assert [cell.source for cell in repaired.cells][i] == "factor = 2"


@pytest.mark.parametrize("lost", ["metadata", "metadata and id", "metadata, id and name"])
def test_an_answer_without_metadata_is_recognized(course, lost):
    notebook = solved(course[1], "square")
    cell = next(cell for cell in notebook.cells if cell.id == "square")
    cell.metadata = {}
    if "id" in lost:
        cell.id = "another"
    if "name" in lost:
        cell.source = "square = lambda x: x * x"
    repaired, notes = repair(notebook, course[1])
    assert ids(repaired) == ids(course[1]) and notes == ["square had lost its metadata"]
    assert "nbgrader" in cell.metadata and any(cell is other for other in repaired.cells)


def test_points_set_by_the_student_are_set_back(course):
    notebook = deepcopy(course[1])
    notebook.cells[-1].metadata.nbgrader.points = 100
    repaired, _ = repair(notebook, course[1])
    assert repaired.cells[-1].metadata.nbgrader.points == 3


def test_injected_parameters_are_left_out(course):
    notebook = deepcopy(course[1])
    notebook.cells.insert(1, new_code_cell("PRESET = 'small'", metadata={"tags": ["injected-parameters"]}))
    repaired, notes = repair(notebook, course[1])
    assert repaired.cells == course[1].cells and notes == ["papermill's injected parameters were left out"]


def test_a_cell_of_another_lab_is_ordinary(course):
    notebook = deepcopy(course[1])
    notebook.cells.append(graded("foreign", "1 + 1", 7))
    repaired, notes = repair(notebook, course[1])
    assert ids(repaired) == ids(course[1]) and notes == ["foreign is no cell of this lab; it is an ordinary cell now"]


def test_another_notebook_is_refused(course):
    with pytest.raises(ValueError, match="none of the lab's cells"):
        repair(new_notebook(cells=[new_code_cell("print('hello')")]), course[1])


@pytest.mark.parametrize("text", ["", "not JSON", "[]", '{"nbformat": 4}', '{"nbformat": 4, "cells": [1]}'])
def test_a_broken_file_is_refused_in_one_sentence(course, tmp_path, text):
    (tmp_path / "lab.ipynb").write_text(text)
    with pytest.raises(ValueError, match="^lab.ipynb is not a notebook: ") as refusal:
        check(tmp_path, tmp_path / "lab.ipynb", tmp_path / "out.ipynb")
    assert "\n" not in str(refusal.value) and not (tmp_path / "out.ipynb").exists()
