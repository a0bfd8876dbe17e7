"""docs/teaching.md, followed to the letter: its commands, in its order, in a course of two tiny labs with its names.

Points and comments are given in formgrader itself: one in a real browser, where there is one, the others as its page
sends them. What a person does in an editor is a replacement here.
"""

import csv
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.browser import CHROMIUM, Browser
from tests.formgrader import Formgrader
from tests.tiny_course import LAB, LESSON
from tools import ROOT
from tools.grade_one import GRADING

TEXT = (ROOT / "docs" / "teaching.md").read_text(encoding="utf8")
BLOCKS = re.findall(r"^```bash\n(.*?)^```", TEXT, re.M | re.S)
STUDENTS = re.findall(r"\w+", re.findall("for student in (.*);", BLOCKS[0])[0])
LABS = re.findall(r"[\w-]+", re.findall("for lab in (.*);", BLOCKS[0])[0])
RIGHT, WRONG = "return 2 * x", "return 3 * x"


def run(root: Path, command: str) -> str:
    """What the command prints. It runs in a shell that knows nothing of this repository."""
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MAKEFLAGS")}
    done = subprocess.run(["bash", "-ec", command], cwd=root, env=env, capture_output=True, text=True, timeout=1800)
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
    (root / ".venv" / "bin").mkdir(parents=True)  # a folder, so that the links of Python itself can be followed
    for path in [*Path(sys.prefix).iterdir(), *Path(sys.prefix, "bin").iterdir()]:
        if path.name not in (".ready", "bin"):
            (root / ".venv" / path.relative_to(sys.prefix)).symlink_to(path)
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


def in_a_browser(there: Formgrader, course: Path, lab: str, student: str, points: float, comment: str) -> None:
    """Given on the submission's page, as a person does; a picture of it is left in the course's folder."""
    number = there.submissions(lab)[student]
    with Browser(course / "browser") as browser:
        browser.open(f"{there.server}/api/status?token={there.token}")  # logs in, as the address that is printed does
        browser.open(f"{there.url}/submissions/{number}/")
        browser.until("window.jQuery && !jQuery.active && document.querySelector('#explain-comment').placeholder")
        browser.type("#explain", f"{points:g}")
        browser.type("#explain-comment", comment)
        browser.until("!jQuery.active")
        for field, kind, given in (("manual_score", "grade", points), ("manual_comment", "comment", comment)):
            asked = f"fetch('{there.url}/api/{kind}s?submission_id={number}').then(each => each.json())"
            browser.until(
                f"(async () => (await {asked}).some(each => each.name == 'explain' && each.{field} == {given!r}))()"
            )
        browser.picture(course / "formgrader.png")


def test_the_page_names_what_there_is():
    assert len(STUDENTS) == 5 and len(LABS) == 2 and all((ROOT / "labs" / lab).is_dir() for lab in LABS)
    known = subprocess.run([sys.executable, "-m", "tools.grade", "--help"], cwd=ROOT, capture_output=True, text=True)
    jupyters = {"--allow-root"}
    assert {*re.findall(r"--[a-z][a-z-]+", TEXT)} - jupyters <= {*re.findall(r"--[a-z-]+", known.stdout)}
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
    page = course / GRADING / "feedback" / STUDENTS[0] / LABS[0] / f"{LABS[0]}.html"
    assert "\u2013 of 3</td><td>not graded yet" in page.read_text()

    with Formgrader(course) as there:
        for student in STUDENTS:
            for lab in LABS:
                if CHROMIUM and (student, lab) == (STUDENTS[0], LABS[0]):
                    in_a_browser(there, course, lab, student, 2.5, "Say why.")
                else:
                    there.give(lab, student, "explain", 2.5, "Say why.")
    run(course, export)
    points = {row["username"]: [row[lab] for lab in LABS] for row in table(course, "moodle")}
    assert points == {student: ["2.5"] * 2 if student == STUDENTS[1] else ["4.5"] * 2 for student in STUDENTS}
    text = page.read_text()
    assert "Say why." in text and "2.5 of 3" in text and "secret" not in text.replace("the secret answer", "")

    text = course / "content" / "labs" / f"{LABS[0]}.md"
    text.write_text(text.read_text().replace(":points: 2", ":points: 4"))
    said = run(course, changed)
    assert "5 of 10 have not changed" in said
    assert said.count("check-double 2 -> 4") == 4 and f"{STUDENTS[1]} {LABS[0]}: check" not in said
    assert [row[LABS[0]] for row in table(course, "moodle")] == ["6.5", "2.5", "6.5", "6.5", "6.5"]
