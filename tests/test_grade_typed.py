"""Honest work in the wrong cell: each text that a student typed is where it counts, or is named in a note."""

from __future__ import annotations

import csv
import json
import re

import pytest

from tests.handing_in import ANSWER, NAME, RELEASED, UNTOUCHED, WRITTEN, Handed, cell_of, put, solved
from tests.test_grade import LAB, course, hand_in
from tests.test_grade import solved as solved_tiny
from tools import ROOT, colab, grade, settings
from tools.grade_one import GRADING
from tools.grading.code import parsed, squeezed, typed_code, typed_lines, without
from tools.grading.notebook import read
from tools.grading.repair import repair

__all__ = ["course"]  # a fixture
TASK, CHECK, STUB = "why-autocast", "check-count-minigpt", "count-minigpt"
MINE = f"def count_minigpt(config):\n    {ANSWER}"


@pytest.fixture
def handed(tmp_path):
    """A function: hand in the solved lab after ``change(data)``."""

    def hand_in(change, data=None) -> Handed:
        data = solved() if data is None else data
        change(data)
        put(tmp_path / "in", **{NAME: json.dumps(data)})
        return Handed(tmp_path / "in")

    return hand_in


def source(name: str, text: str, where: str = "below"):
    """A change: type ``text`` above or below what is in a cell, or instead of it."""

    def change(data: dict) -> None:
        cell = cell_of(data, name)
        old = "".join(cell["source"])
        cell["source"] = {"above": f"{text}\n{old}", "below": f"{old}\n{text}", "instead": text}[where]

    return change


def code(source: str, **metadata) -> dict:
    return {"cell_type": "code", "metadata": metadata, "outputs": [], "execution_count": None, "source": source}


@pytest.mark.parametrize("where", ["above", "below", "instead"])
def test_a_written_answer_typed_into_the_task_is_in_the_answer(handed, where):
    result = handed(source(TASK, "\nIt is *mine*.\n", where))
    assert result.notes == [f"what was typed into {TASK} was moved into the answer below it"]
    assert result.source[f"{TASK}-answer"].endswith("It is *mine*.") and WRITTEN in result.source[f"{TASK}-answer"]
    assert result.source[TASK] == "".join(cell_of(UNTOUCHED, TASK)["source"])


def test_also_in_the_middle_of_a_line_with_a_picture_and_without_the_answers_cell(handed):
    def change(data: dict) -> None:
        task = cell_of(data, TASK)
        task["source"] = task["source"].replace("as evidence.", "as evidence. It is mine. ![x](attachment:x.png)")
        task["attachments"] = {"x.png": {"image/png": "iVBORw0KGgo="}}
        data["cells"].remove(cell_of(data, f"{TASK}-answer"))

    result = handed(change)
    assert "It is mine." in result.source[f"{TASK}-answer"]
    assert cell_of(result.notebook, f"{TASK}-answer").attachments["x.png"]["image/png"] == "iVBORw0KGgo="


def test_typed_into_a_task_on_colab_where_the_links_are_gone():
    path = ROOT / "labs/lab04-optimizers/lab04-optimizers.ipynb"
    notebook, release = colab.carry(read(path), b"", settings.pins(ROOT), path.parent), read(path)
    task = next(cell for cell in notebook.cells if cell.metadata.get("nbgrader", {}).get("task"))
    task.source += "\nIt is mine."
    repaired, notes = repair(notebook, release)
    answer = next(cell for cell in repaired.cells if cell.id == f"{task.id}-answer")
    assert answer.source == "*Your answer:*\n\nIt is mine." and len(notes) == 1


@pytest.mark.parametrize("lab", sorted(path.name for path in (ROOT / "labs").iterdir()))
def test_a_copy_on_colab_needs_no_repair(lab):
    path = ROOT / "labs" / lab / f"{lab}.ipynb"
    assert repair(colab.carry(read(path), b"", settings.pins(ROOT), path.parent), read(path))[1] == []


@pytest.mark.parametrize(
    "text, where, kept",
    [
        ("def helper():\n    return 1  # mine", "above", "code"),
        ("print(count_minigpt(cases['nano']))", "below", "code"),
        ("# looks right", "below", "code"),
        ("I have 3 of 3 here", "below", "markdown"),
    ],
)
def test_what_is_typed_into_a_check_has_a_cell_of_its_own(handed, text, where, kept):
    result = handed(source(CHECK, text, where))
    (note,) = result.notes
    assert f"what was typed into {CHECK} (`{text.splitlines()[0]}`) was kept in a cell of its own" in note
    own = next(cell for cell in result.notebook.cells if cell.source == text)
    there = [cell.id for cell in result.notebook.cells]
    assert own.cell_type == kept and there.index(own.id) - there.index(CHECK) == (-1 if where == "above" else 1)
    assert result.source[CHECK] == "".join(cell_of(UNTOUCHED, CHECK)["source"])


@pytest.mark.parametrize("name", [CHECK, "check-smallest-card"])
def test_what_is_typed_among_a_checks_lines_runs_before_it_or_is_said(handed, name):
    """Between the statements of a check, or inside of the function that it is."""

    def change(data: dict) -> None:
        cell = cell_of(data, name)
        cell["source"] = re.sub(r"(?m)^( *)(cases = .*)$", r"\1tries = 3\n\1\2  # mine", cell["source"], count=1)

    result = handed(change)
    (note,) = result.notes
    inside = cell_of(UNTOUCHED, name)["source"][-1].startswith(" ")
    assert f"what was typed into {name} (`tries = 3`) was " + ("not used" if inside else "kept in a cell") in note
    own = next(cell for cell in result.notebook.cells[1:] if "tries = 3" in cell.source)
    assert "# mine" in own.source and own.cell_type == ("markdown" if inside else "code")
    assert result.source[name] == "".join(cell_of(UNTOUCHED, name)["source"])


def test_a_check_in_another_style_says_nothing(handed):
    result = handed(lambda data: source(CHECK, cell_of(data, CHECK)["source"].replace('"', "'"), "instead")(data))
    assert result.notes == []


@pytest.mark.parametrize("where", ["above", "below"])
def test_an_answer_typed_into_the_check_is_the_answer(handed, where):
    result = handed(source(CHECK, MINE, where), json.loads(json.dumps(UNTOUCHED)))
    assert result.answers == 1 and result.source[STUB] == MINE
    assert f"{STUB} was answered in another cell, which was taken for it" in result.notes


def test_an_answer_in_a_cell_of_its_own_below_the_check_is_the_answer(handed):
    result = handed(lambda data: data["cells"].append(code(f"import math\n{MINE}")), json.loads(json.dumps(UNTOUCHED)))
    assert result.source[STUB] == f"import math\n{MINE}"
    assert result.notes == [f"{STUB} was answered in another cell, which was taken for it"]


# Parameters.

OWN = "import numpy\ntries = 3"


@pytest.mark.parametrize(
    "typed, unused, kept",
    [
        ('DEVICE = "cuda"', ['DEVICE = "cuda"'], ""),
        ('DEVICE = "cuda"; tries = 3', ['DEVICE = "cuda"'], "tries = 3"),
        ('tries = 3; DRY_RUN = False; more = "ü"; SEED = 7', ["DRY_RUN = False", "SEED = 7"], 'tries = 3; more = "ü"'),
        (f'PRESET = (\n    "small"\n)\n{OWN}', ['PRESET = ( "small" )'], OWN),
        ("SEED: int = 3\nSEED += 1  # mine", ["SEED: int = 3", "SEED += 1"], "# mine"),
        ("DEVICE = 'cuda' if (", ["DEVICE = 'cuda' if ("], ""),
    ],
)
@pytest.mark.parametrize("where", ["the cell of parameters", "instead", "a cell of its own"])
def test_parameters_are_the_graders(handed, typed, unused, kept, where):
    def change(data: dict) -> None:
        if where == "a cell of its own":
            data["cells"].insert(data["cells"].index(cell_of(data, "setup")), code(typed))
        else:
            source("parameters", typed, "instead" if where == "instead" else "below")(data)

    if where == "a cell of its own" and parsed(typed) is None:
        return  # it does not run, and stays
    result = handed(change)
    given = {squeezed("".join(cell["source"])) for cell in solved()["cells"]}
    own = [cell.source for cell in result.notebook.cells if squeezed(cell.source) not in given]
    assert [text for text in own[1:] if text] == ([kept] if kept else [])
    listed = ", ".join(f"`{line}`" for line in unused)
    assert f"not used: {listed}; it is graded with the released parameters" in result.notes
    assert result.source[cell_of(UNTOUCHED, "parameters")["id"]] == "".join(cell_of(UNTOUCHED, "parameters")["source"])


def test_the_setup_is_the_graders_too(handed):
    def change(data: dict) -> None:
        cell = cell_of(data, "setup")
        cell["source"] = re.sub(r"(?m)^device = .*", "device = 'cuda'", cell["source"]) + "\nimport numpy"

    result = handed(change)
    assert "not used: `device = 'cuda'`; it is graded with the released parameters" in result.notes
    assert any(cell.source == "import numpy" for cell in result.notebook.cells)


def test_papermills_parameters_go_and_code_among_them_stays(handed):
    injected = code('# Parameters\nPRESET = "small"\nimport numpy\n', tags=["injected-parameters"])
    result = handed(lambda data: data["cells"].insert(4, injected))
    assert result.notes == ["papermill's injected parameters were left out"]
    assert "import numpy" in result.text and 'PRESET = "small"' not in result.text


# Cells merged, deleted, moved.


def test_cells_of_the_lab_merged_into_one_are_parted(handed):
    def change(data: dict) -> None:
        text = "\n\n".join(cell["source"] for cell in data["cells"] if cell["cell_type"] == "code")
        data["cells"] = [code(text)]

    result = handed(change)
    assert result.answers == 4 and result.notes[0] == "the nbgrader metadata of every cell was gone"


@pytest.mark.parametrize("name", ["parameters", "setup", CHECK, STUB])
def test_a_cell_that_others_need_is_put_back(handed, name):
    result = handed(lambda data: data["cells"].remove(cell_of(data, name)))
    (note,) = result.notes
    assert "was deleted; it was put back" in note
    if name != STUB:
        assert [cell.source for cell in result.notebook.cells[1:]] == [cell["source"] for cell in solved()["cells"]]


def test_a_check_above_its_answer_is_moved_below(handed):
    result = handed(lambda data: data["cells"].reverse())
    places = {cell.id: i for i, cell in enumerate(result.notebook.cells)}
    assert all(places[name] < places[f"check-{name}"] for name in (STUB, "count-llama", "smallest-card"))
    assert "stood above an answer; they were moved below it" in result.notes[0]


def test_many_repairs_of_a_kind_are_one_sentence(handed):
    result = handed(lambda data: [cell.update(cell_type="raw") for cell in data["cells"]])
    assert len(result.notes) == 1 and result.notes[0].endswith("more had become markdown cells") and result.answers == 4


# Code that was typed, told from code that was there.


@pytest.mark.parametrize(
    "source, original, typed",
    [
        ("a = 1\nb = 2", "a = 1", "b = 2"),
        ("a = 1  # why\nb = [\n  2,  # two\n]", "a = 1\nb = [2]", "# why\n# two"),
        ("@wrap\ndef f():\n    pass\nx = 1", "x = 1", "@wrap\ndef f():\n    pass"),
        ("x = 'é'; y = 2; x = 3", "x = 'é'\ny = 2", "x = 3"),
        ("%time f()\nx = 1", "x = 1", "%time f()"),
        ("!ls\nx = '''\n%not magic\n'''", "x = 1", "!ls\nx = '''\n%not magic\n'''"),
        ("x = 1\nno python", "x = 1", "no python"),
        ("x = 1\n" + "(" * 999, "x = 1", "(" * 999),
    ],
)
def test_typed_code_is_what_the_released_cell_lacks(source, original, typed):
    assert typed_code(source, original)[0] == typed


def test_long_formulas_and_links_are_no_trap():
    assert parsed("x = " + "+".join("1" * 30_000)) is None and without("x = (", {"x"}) == ("x = (", [])
    assert typed_lines("see [a\nb](../x.ipynb)\nmine", "see [a\nb](https://x)") == ["mine"]
    assert squeezed("x[0](a.b)") != squeezed("x[0](a.c)")  # calls are no links
    assert len(squeezed("[" * (2 << 20))) == 2 << 20 and parsed("x = 0\n" * 100_000) is None  # seconds, not hours
    assert typed_lines("mine\n" * 30_000, "given")[:2] == ["mine", "mine"]


def test_the_courses_own_version_has_nothing_typed_in_it():
    release = read(RELEASED)
    assert repair(read(ROOT / "solutions" / NAME[:-6] / NAME), release)[1] == []


@pytest.mark.slow
def test_helpers_and_parameters_all_the_way_to_the_points(course):
    """By nbgrader: an answer that needs a module beside it, and a device that the grader may not have."""
    root, student_version = course
    notebook = solved_tiny(student_version, "square", body="from powers import second; return second(x)")
    path = hand_in(root, "helped", notebook, "my work.ipynb")
    path.with_name("powers.py").write_text("def second(x):\n    return x * x\n")
    path.with_name("math.py").write_text("raise SystemExit\n")
    assert grade.main(["--root", str(root), "--student", "helped"]) == 0
    with open(root / GRADING / "scores.csv", newline="") as file:
        (row,) = csv.DictReader(file)
    assert (row["status"], float(row["score"])) == ("graded", 3)
    assert "my work.ipynb was taken for lab01-tiny.ipynb" in row["notes"] and "taken along: powers.py" in row["notes"]
    assert "math.py was not used: its name hides the module math" in row["notes"]
    page = root / GRADING / "feedback" / "helped" / LAB / f"{LAB}.html"
    assert "math.py was not used" in page.read_text(encoding="utf8")
