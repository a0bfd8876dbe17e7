"""Where a student stands: a tiny lab in work/, with answers of every kind, run for real."""

from __future__ import annotations

import re

import nbformat
import pytest
from nbformat.v4 import new_output

from tests.tiny_course import CHECK, EXERCISE, HEAD, TASK
from tools import build, check

SQUARE = EXERCISE.replace("double", "square").replace("2 * x", "x * x")
LAB = (
    HEAD
    + "\n## Part 1\n"
    + EXERCISE
    + CHECK
    + SQUARE
    + """
```{code-cell}
:name: check-square
:tags: [check]
:points: 3

from minigpt import checks


@checks.check
def check_square(square):
    def squares(answer):
        if answer(3) != 9:
            raise checks.Wrong("not-squared", "3 becomes another number than 9. Look again.")

    def floats(answer):
        if answer(1.5) != 2.25:
            raise checks.Wrong("not-a-float", "1.5 is lost. Look again.")

    return checks.score("square is right", checks.part(1, squares, square), checks.part(2, floats, square))
```
"""
    + TASK
)
NAME = "lab01-tiny"


@pytest.fixture
def root(course):
    """A course with one lab, and the student's copy of it."""
    made = course(**{"labs/lab01-tiny.md": LAB, "labs/lab02-other.md": LAB})
    assert build.main([], made) == 0
    for lab in (NAME, "lab02-other"):
        copy = made / "work" / "labs" / lab / f"{lab}.ipynb"
        copy.parent.mkdir(parents=True)
        copy.write_bytes((made / "labs" / lab / f"{lab}.ipynb").read_bytes())
    return made


def answer(root, lab=NAME, **sources: str) -> str:
    """Save these sources in the student's copy; returns the file's text."""
    path = root / "work" / "labs" / lab / f"{lab}.ipynb"
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        cell.source = sources.pop(cell.id.replace("-", "_"), cell.source)
    assert not sources
    nbformat.write(notebook, path)
    return path.read_text()


@pytest.mark.slow
def test_each_exercise_stands_as_it_is(root, capsys):
    saved = answer(root, double="def double(x):\n    return 2 * x", explain_answer="Because.", check_double="1 / 0")
    assert check.main(["lab01"], root) == 1
    shown = capsys.readouterr()
    assert shown.out.splitlines() == [
        "lab01-tiny: 2 of 5 points by the checks that you see; a person gives 3 more",
        "  passed        double     2 of 2",
        "  not written   square     0 of 3",
        "  for a person  explain    - of 3",
    ]
    assert "Traceback" not in shown.err and "WARNING" not in shown.err
    assert (root / "work/labs/lab01-tiny/lab01-tiny.ipynb").read_text() == saved  # it was read

    answer(root, square="def square(x):\n    return int(x) ** 2", explain_answer="*Your answer:*")
    answer(root, "lab02-other", double="def double(x):\n    return (", square="def square(x):\n    return x")
    assert check.main([], root) == 1  # every lab that was begun
    assert [re.sub(r" \(\S+, line 2\)", "", line) for line in capsys.readouterr().out.splitlines()] == [
        "lab01-tiny: 3 of 5 points by the checks that you see; a person gives 3 more",
        "  passed        double     2 of 2",
        "  not yet       square     1 of 3  1.5 is lost.",
        "  for a person  explain    - of 3  not written",
        "lab02-other: 0 of 5 points by the checks that you see; a person gives 3 more",
        "  not yet       double     0 of 2  its cell stops: SyntaxError: incomplete input",
        "  not yet       square     0 of 3  3 becomes another number than 9.",
        "  for a person  explain    - of 3  not written",
    ]


@pytest.mark.slow
def test_all_passed_is_0_and_a_dead_kernel_is_said(root, capsys):
    right = {"double": "def double(x):\n    return 2 * x", "square": "def square(x):\n    return x * x"}
    answer(root, **right)
    assert check.main([NAME], root) == 0
    answer(root, **{**right, "square": "import os\nos._exit(3)"})
    assert check.main([NAME], root) == 1
    last = capsys.readouterr().out.splitlines()[-2]
    assert last == "  not yet       square     0 of 3  the kernel ended itself with exit code 3"


def test_what_it_refuses(root, capsys):
    assert check.main(["lab05"], root) == 2
    assert capsys.readouterr().err == "check: LAB is 'lab05'; there is lab01-tiny, lab02-other\n"
    assert check.main([], root) == 0
    assert capsys.readouterr().out.startswith("No lab in work/ has an answer yet.")
    (root / "work/labs/lab01-tiny/lab01-tiny.ipynb").write_text("{}")
    assert check.main(["lab01"], root) == 1
    said = capsys.readouterr().err
    assert said.startswith("check: work/labs/lab01-tiny: lab01-tiny.ipynb is not a notebook") and said.count("\n") == 1
    (root / "work/labs/lab01-tiny/lab01-tiny.ipynb").unlink()
    assert check.main(["lab01"], root) == 2
    assert "`make lab` makes it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("outputs", "given"),
    [
        ([], (3.0, "")),
        ([new_output("stream", text="Passed: all\n"), new_output("execute_result", {"text/plain": "'a'"})], (3.0, "")),
        ([new_output("stream", text="1 of 3 points\nOne. Two.\n"), new_output("execute_result", {"text/plain": "1.0"})],
         (1.0, "One.")),
        ([new_output("stream", text="1 of 3 points\nOne and\n  a half\n    line 2: x = 1\n"),
          new_output("execute_result", {"text/plain": "1.0"})], (1.0, "One and a half")),
        ([new_output("error", ename="Wrong", evalue="It is 7 GB. No.\nMore", traceback=[])], (0.0, "It is 7 GB.")),
        ([new_output("error", ename="KeyError", evalue="'x'", traceback=[])], (0.0, "KeyError: 'x'")),
        ([new_output("error", ename="KeyboardInterrupt", evalue="", traceback=[])], (0.0, "KeyboardInterrupt")),
    ],
)  # fmt: skip
def test_a_verdict_is_read_as_nbgrader_s_settings_read_it(outputs, given):
    metadata = {"nbgrader": {"points": 3}}
    cell = nbformat.v4.new_code_cell("check", outputs=outputs, metadata=metadata, execution_count=1)
    assert check.verdict(cell) == given
    cell.outputs, cell.execution_count = [], None
    assert check.verdict(cell) == (0.0, "")  # not reached is not passed


def test_a_check_of_a_run_waits_for_what_is_above_it():
    """Without the run's names it says so; an exercise of its own, or a verdict, speaks for itself."""

    def checked(name: str, error: str) -> nbformat.NotebookNode:
        outputs = [new_output("error", ename=error, evalue="why", traceback=[])]
        metadata = {"nbgrader": {"grade_id": name, "grade": True, "solution": False, "points": 2}}
        return nbformat.v4.new_code_cell("check", outputs=outputs, metadata=metadata, execution_count=1)

    def whys(*cells) -> list[str]:
        notebook = nbformat.v4.new_notebook(cells=list(cells))
        return [line.why for line in check.read_lines(notebook, {})]

    assert whys(checked("a", "NameError")) == ["NameError: why"]
    assert whys(checked("a", "Wrong"), checked("b", "NameError")) == ["why", "it needs what is above"]
    assert whys(checked("a", "Wrong"), checked("b", "Wrong")) == ["why", "why"]


def test_a_sentence_ends_where_the_next_begins():
    assert check.first_sentence("off by 1.0737: GiB, e.g. 3 GB. See above") == "off by 1.0737: GiB, e.g. 3 GB."
    assert check.first_sentence("  one line\nanother") == "one line" and check.first_sentence("") == ""


def test_a_long_sentence_keeps_its_column(capsys):
    lines = [check.Line("a", check.NOT_YET, 0.0, 2, "word " * 60)]
    shown = check.show("lab", lines).splitlines()
    assert len(shown) > 3 and all(len(line) <= check.WIDTH for line in shown)
    assert {line.index("word") for line in shown[1:]} == {shown[1].index("word")}
