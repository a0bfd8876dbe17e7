"""docs/teaching.md, followed to the letter: its commands, in its order, in a course of two tiny labs with its names.

Two things a person does are done here as their effect: points and a comment given in formgrader are written where
formgrader writes them, and the text of a lab is changed by a replacement.
"""

import csv
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from nbgrader.api import Gradebook

from tests.tiny_course import LAB, LESSON
from tools import ROOT
from tools.grade_one import GRADING, settings
from tools.grading.gradebook import entries

TEXT = (ROOT / "docs" / "teaching.md").read_text(encoding="utf8")
BLOCKS = re.findall(r"^```bash\n(.*?)^```", TEXT, re.M | re.S)
STUDENTS = re.findall(r"\w+", re.findall("for student in (.*);", BLOCKS[0])[0])
LABS = re.findall(r"[\w-]+", re.findall("for lab in (.*);", BLOCKS[0])[0])
RIGHT, WRONG = "return 2 * x", "return 3 * x"


def run(root: Path, command: str) -> str:
    """What the command prints. It runs in a shell that knows nothing of this repository."""
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MAKEFLAGS")}
    done = subprocess.run(["bash", "-ec", command], cwd=root, env=env, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def table(root: Path, name: str) -> list[dict]:
    with open(root / GRADING / f"{name}.csv", newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def course(tmp_path_factory) -> Path:
    """The repository's tools around two tiny labs, and what five students have handed in."""
    root = tmp_path_factory.mktemp("course")
    for name in ("tools", "minigpt"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("Makefile", "nbgrader_config.py", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, root)
    for name, text in {"lessons/01-tiny": LESSON, **{f"labs/{lab}": LAB for lab in LABS}}.items():
        (root / "content" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "content" / f"{name}.md").write_text(text)
    (root / ".venv").mkdir()
    for path in Path(sys.prefix).iterdir():
        if path.name != ".ready":
            (root / ".venv" / path.name).symlink_to(path)
    (root / ".venv" / ".ready").touch()
    run(root, "make notebooks")
    for student in STUDENTS:
        for lab in LABS:
            text = (root / "labs" / lab / f"{lab}.ipynb").read_text()
            stub = re.findall(r"# YOUR CODE HERE\\n\",\n *\"    raise NotImplementedError\(\)", text)[0]
            path = root / "handed-in" / student / f"{lab}.ipynb"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text.replace(stub, WRONG if student == STUDENTS[1] else RIGHT))
    return root


def test_the_page_names_what_there_is():
    assert len(STUDENTS) == 5 and len(LABS) == 2 and all((ROOT / "labs" / lab).is_dir() for lab in LABS)
    known = subprocess.run([sys.executable, "-m", "tools.grade", "--help"], cwd=ROOT, capture_output=True, text=True)
    assert {*re.findall(r"--[a-z][a-z-]+", TEXT)} <= {*re.findall(r"--[a-z-]+", known.stdout)}
    assert {*re.findall(r"make ([a-z]+)", TEXT)} <= {
        *re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.M)
    }


@pytest.mark.slow
def test_the_page_leads_from_nothing_to_exported_grades(course):
    collect, grade, formgrader, export, changed = BLOCKS
    assert (formgrader, export) == ("make formgrader\n", "make grade ARGS=--export\n")
    run(course, collect)
    run(course, grade)
    rows = table(course, "scores")
    assert [(row["student"], row["lab"]) for row in rows] == [(student, lab) for student in STUDENTS for lab in LABS]
    for row in rows:
        score = "0.0" if row["student"] == STUDENTS[1] else "2.0"
        assert (row["status"], row["score"], row["max_score"]) == ("waiting", score, "5.0")
    assert all(row[lab] == "" for row in table(course, "moodle") for lab in LABS)

    with Gradebook(settings(course).CourseDirectory.db_url) as book:
        for student in STUDENTS:
            for lab in LABS:
                entry = entries(book, student, lab)["explain"]
                entry.manual_score, entry.needs_manual_grade = 2.5, False
                book.find_comment("explain", lab, lab, student).manual_comment = "Say why."
        book.db.commit()
    run(course, export)
    points = {row["username"]: [row[lab] for lab in LABS] for row in table(course, "moodle")}
    assert points == {student: ["2.5"] * 2 if student == STUDENTS[1] else ["4.5"] * 2 for student in STUDENTS}
    page = (course / GRADING / "feedback" / STUDENTS[0] / LABS[0] / f"{LABS[0]}.html").read_text()
    assert "Say why." in page and "secret" not in page.replace("the secret answer", "")

    text = course / "content" / "labs" / f"{LABS[0]}.md"
    text.write_text(text.read_text().replace(":points: 2", ":points: 4"))
    said = run(course, changed)
    assert "5 of 10 have not changed" in said
    assert said.count("check-double 2 -> 4") == 4 and f"{STUDENTS[1]} {LABS[0]}: check" not in said
    assert [row[LABS[0]] for row in table(course, "moodle")] == ["6.5", "2.5", "6.5", "6.5", "6.5"]
