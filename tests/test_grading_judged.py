"""A submission that does everything wrong at once, judged: each exercise costs itself alone, in a box and without one.

And, in this process, what a check's verdict looks like to nbgrader, whose own ``determine_grade`` says the points.
"""

import shutil
from types import SimpleNamespace

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from nbgrader.api import Gradebook
from nbgrader.utils import determine_grade

from minigpt.checks.answers import Channel
from tests.test_grade import KERNEL, graded
from tests.test_grading_box import needs_bubblewrap
from tools import ROOT
from tools.grade_one import GRADING, settings
from tools.grading import closed, one
from tools.grading.gradebook import release
from tools.grading.judge import judge, prepared
from tools.grading.kernels import Kernel

LAB = "lab01-tiny"
SEVERAL = """from minigpt import checks


@checks.check
def check_{name}({name}):
    def is_right(answer, case):
        if checks.call(answer, case) != {truth}:
            raise checks.Wrong("differs", "{name} is wrong")

    ### BEGIN HIDDEN TESTS
    assert NUMBER == 7
    ### END HIDDEN TESTS
    right, negative = (checks.part(1, is_right, {name}, each=[case]) for case in (NUMBER, -1))
    return checks.score("{name}", right, negative)
"""
NEEDS = """from minigpt import checks


@checks.check
def check_twice(twice, ends):
    def is_right(answer, case):
        if checks.call(answer, case) != 2 * case + 2:
            raise checks.Wrong("differs", "twice is wrong")

    def ends_right(answer, case):
        if checks.call(answer, case) != case + 1:
            raise checks.Wrong("differs", "ends is wrong")

    earlier = lambda: {"part 1": checks.part(0, ends_right, ends, each=[3])}
    return checks.score("twice", checks.part(2, is_right, twice, each=[3]), needs=earlier)
"""
MADE = """from minigpt import checks


@checks.check
def check_made(made):
    with checks.judging("made is a number"):
        from minigpt.checks import answers

        assert answers.value(made) == 14
"""
LIES = """from minigpt import checks


@checks.check
def check_lies(lies):
    def is_right(answer):
        if checks.call(answer, 1)["points"] != 2:
            raise checks.Wrong("differs", "lies is wrong")

    return checks.score("lies", checks.part(2, is_right, lies))
"""
EXERCISES = {
    "ends": "case + 1", "loops": "case + 2", "large": "case + 3", "part": "case * 5", "stops": "case + 6",
    "patches": "case + 7", "patched": "case + 8", "later": "case + 9", "late": "case + 10",
}  # fmt: skip
HOSTILE = {
    "ends": "def ends(x):\n    import os\n    os._exit(5)",
    "loops": "def loops(x):\n    while True:\n        pass",
    "large": "def large(x):\n    bytearray(60 << 30)\n    return x + 3",
    "part": "def part(x):\n    return 35",
    "stops": "import os\nos._exit(3)",
    "twice": "def twice(x):\n    return 2 * ends(x)",
    "patches": "import operator\noperator.add = lambda *_: 7\ndef patches(x):\n    return 0",
    "patched": "def patched(x):\n    import operator\n    return operator.add(x, 8)",
    "later": "import os, threading\nthreading.Timer(0.3, os._exit, [9]).start()\ndef later(x):\n    return x + 9",
    "late": "def late(x):\n    import time\n    time.sleep(0.5)\n    return x + 10",
    "lies": "def lies(x):\n    return {'point': 2}",
}


def lab():
    """Exercises of two points each, one of which leans on the first; and a value that a cell makes."""
    cells = [new_markdown_cell("# A tiny lab", id="title"), new_code_cell("NUMBER = 7", id="setup")]
    cells[1].metadata["tags"] = ["setup"]
    for name, truth in EXERCISES.items():
        right = f"def {name}(x):\n    ### BEGIN SOLUTION\n    return {truth.replace('case', 'x')}\n    ### END SOLUTION"
        cells += [graded(name, right), graded(f"check-{name}", SEVERAL.format(name=name, truth=truth), 2)]
    lies = "def lies(x):\n    ### BEGIN SOLUTION\n    return {'points': 2}\n    ### END SOLUTION"
    cells += [graded("lies", lies), graded("check-lies", LIES, 2)]
    twice = "def twice(x):\n    ### BEGIN SOLUTION\n    return 2 * ends(x)\n    ### END SOLUTION"
    cells += [graded("twice", twice), graded("check-twice", NEEDS, 2)]
    cells += [new_code_cell("made = 2 * NUMBER", id="run"), graded("check-made", MADE, 2)]
    return new_notebook(cells=cells, metadata=KERNEL)


@pytest.fixture(scope="module")
def graded_by(tmp_path_factory):
    """A function: the points and the words of each check of the hostile submission, graded with this sandbox."""
    root, known = tmp_path_factory.mktemp("course"), {}
    shutil.copy(ROOT / "nbgrader_config.py", root)
    source = root / "solutions" / LAB / f"{LAB}.ipynb"
    source.parent.mkdir(parents=True)
    nbformat.write(lab(), source)
    released = release(root, LAB)

    def ask(sandbox: str) -> SimpleNamespace:
        if sandbox not in known:
            notebook = nbformat.read(released, as_version=4)
            for cell in notebook.cells:
                cell.source = HOSTILE.get(cell.id, cell.source)
            quits = new_code_cell("quit()", id="quits")
            spoils = new_code_cell("import minigpt.checks\nminigpt.checks.score = lambda *_, **__: None", id="spoils")
            notebook.cells[2:2] = [quits, spoils]
            path = root / GRADING / "checked" / sandbox / LAB / released.name
            path.parent.mkdir(parents=True)
            nbformat.write(notebook, path)
            one.NOTES.clear()
            problem = one.grade(root, LAB, sandbox, sandbox, patience=2, timeout=4)
            with Gradebook(settings(root).CourseDirectory.db_url) as book:
                notebooks = book.find_submission(LAB, sandbox).notebooks
                points = {entry.name: entry.score for each in notebooks for entry in each.grades}
            done = nbformat.read(root / GRADING / "autograded" / sandbox / LAB / released.name, as_version=4)
            told = {cell.id: words(cell) for cell in done.cells}
            known[sandbox] = SimpleNamespace(problem=problem, points=points, words=told, notes=[*one.NOTES])
            known[sandbox].verdicts = {cell.id: cell.metadata.get("verdict") for cell in done.cells}
        return known[sandbox]

    return ask


def words(cell) -> str:
    return " ".join(output.get("text") or output.get("evalue") or "" for output in cell.get("outputs", ()))


SLOW = pytest.mark.slow


@pytest.fixture(params=[pytest.param("off", marks=SLOW), pytest.param("require", marks=[SLOW, needs_bubblewrap])])
def grades(request, graded_by):
    return graded_by(request.param)


def test_each_exercise_costs_itself_alone(grades):
    assert grades.problem is None
    assert grades.points == {
        "check-ends": 0, "check-loops": 0, "check-large": 0, "check-part": 1, "check-stops": 0, "check-twice": 2,
        "check-made": 2, "check-patches": 0, "check-patched": 2, "check-later": 2, "check-late": 2, "check-lies": 0,
    }  # fmt: skip


def test_the_words_say_why(grades):
    for name, sentence in {
        "check-ends": "ends ends the process that it runs in (exit code 5)",
        "check-loops": "loops had not ended after 2 seconds",
        "check-large": "large fails with MemoryError",
        "check-stops": "there is no stops: its cell ends the process that it runs in (exit code 3)",
        "quits": "This cell ended the kernel.",
        "stops": "This cell ended the kernel.",
        "check-patched": "judged where that cell has not run.",
        "check-late": "judged where that cell has not run.",
        "check-lies": "what came back from the answer cannot be judged",
    }.items():
        assert sentence in grades.words[name].replace("2.0", "2"), name


def test_the_verdicts_have_ids(grades):
    wanted = {"check-ends": "ends-program", "check-lies": "broken-reply", "check-part": "differs", "check-twice": ""}
    assert {name: grades.verdicts[name] for name in wanted} == wanted


def test_a_check_that_a_reply_breaks_is_noted(grades):
    assert grades.notes == [
        "the check check-lies itself failed with KeyError: 'points'; with the course's own answers it does not"
    ]


def test_a_part_that_leans_on_a_wrong_one_is_judged_with_the_courses_own(grades):
    assert "the course's own earlier answers" in grades.words["check-twice"]
    assert "Passed: twice" in grades.words["check-twice"]


class Nobody(Channel):
    """Has every answer, and none does anything."""

    def ask(self, do, *what, name="the answer"):
        return True


def check_x(body: str):
    return graded("check-x", f"from minigpt import checks\n\n\n@checks.check\ndef check_x(x):\n    {body}", 2)


WRONG = 'raise checks.Wrong("differs", "no")'


@pytest.mark.parametrize(
    "body, points",
    [
        ('with checks.judging("it is"):\n        assert 1 == 1', 2),
        ('with checks.judging("it is"):\n        assert 1 == 2, "no"', 0),
        (f"{WRONG}\n    return checks.score('it')", 0),
        ("return checks.score('it', checks.part(1.5, print), checks.part(0.5, lambda: len(x)))", 0),
        (
            f"def no():\n        {WRONG}\n    return checks.score('it', checks.part(1.5, print), checks.part(0.5, no))",
            1.5,
        ),
        ("return checks.score('it', checks.part(2, print))", 2),
        ("raise KeyError('the check is broken')\n    return checks.score('it')", 0),
        ("import sys\n    sys.exit()\n    return checks.score('it')", 0),
    ],
)
def test_nbgrader_reads_the_points_of_a_verdict(body, points):
    cell = check_x(body)
    cell.outputs = judge(cell, {}, Nobody()).outputs
    assert determine_grade(cell) == (points, 2)


def test_a_check_that_fails_itself_is_named():
    verdict = judge(check_x("raise KeyError('broken')\n    return checks.score('it')"), {}, Nobody())
    assert verdict.broken == "the check check-x itself failed with KeyError: 'broken'" and not verdict.ids


@pytest.mark.parametrize("source", ["assert x(1) == 1", "1.5", "@print\ndef check_x(x):\n    pass"])
def test_a_check_of_another_form_gives_no_points_and_is_named(source):
    verdict = judge(graded("check-x", source, 2), {}, Nobody())
    assert verdict.points == 0 and "cell 'check-x': a check cell is" in verdict.broken


def test_what_one_check_leaves_behind_is_not_there_for_the_next():
    namespace = {"a": 1}
    judge(check_x('with checks.judging("it is"):\n        assert a == 1'), namespace, Nobody())
    assert namespace == {"a": 1}


def test_a_labs_own_cell_that_fails_is_named():
    cell = new_code_cell("1 / 0", id="broken-setup", metadata={"tags": ["setup"]})
    with pytest.raises(ValueError, match="broken-setup fails: ZeroDivisionError"):
        prepared([cell])


def test_of_other_cells_only_what_they_define_runs_beside_the_answers():
    source = "import math\n%matplotlib inline\nx = math.pi\ndef f():\n    return 1\nprint(f())\nclass A:\n    pass"
    assert closed.definitions(source) == "import math\ndef f():\n    return 1\nclass A:\n    pass"
    assert closed.definitions("def broken(") == ""
    source = "def f():\n    d = 1\nclass A: pass\na, b = 1, 2\nc: int = 3\nimport math"
    assert closed.names(source) == {"f", "A", "a", "b", "c", "math"}


def test_an_answer_leans_on_the_cells_whose_names_it_reads_and_on_no_others():
    cells = [
        "import math\nmath.pi = 3\ndef first(x): return helper(x)",
        "def helper(x): return math.pi",
        "import os\nos.environ.clear()\nother = 1",
        "def last(x):\n    import os\n    other = first(x)\n    return other",
    ]
    assert closed.leaning(cells, {"last"}, there={"math"}) == [cells[0], cells[1], cells[3]]
    assert closed.leaning(cells, {"helper"}, there={"math"}) == [cells[1]]
    assert [closed.acts(cell) for cell in cells] == [True, False, True, False]
    assert not closed.acts("raise NotImplementedError()") and not closed.acts("'text'\na = 1\nclass A: pass")
    assert closed.acts("a = print()") and closed.acts("torch.equal = 1")


def test_a_check_is_about_the_exercises_right_above_it():
    cells = [cell for cell in lab().cells if cell.cell_type == "code"]
    own, earlier = closed.about(cells, "check-loops")
    assert own == {"loops"} and len(earlier) == 1 and "def ends" in earlier[0]


@pytest.mark.parametrize(
    "said", [{}, {"data": {"text/plain": "__import__('os')"}}, {"data": {"text/plain": "'%%%'"}}, {"data": 3}, None]
)
def test_a_reply_that_is_none_is_a_verdict_about_the_answer(said):
    from minigpt.checks import Wrong

    with pytest.raises(Wrong) as caught:
        Kernel(lambda code: said).ask("has", "x")  # type: ignore[arg-type, return-value]
    assert caught.value.id == "broken-reply"
