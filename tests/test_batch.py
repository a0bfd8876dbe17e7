"""A class with the tiny lab: what runs at a time, what is stopped, what is kept, what a person gives, what changed."""

import csv
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import psutil
import pytest
from nbgrader.api import Gradebook

from tests.plays import play
from tests.test_grade import LAB, check_cell, course, hand_in, solved, source_notebook  # noqa: F401  (a fixture)
from tools import ROOT, grade
from tools.grade_one import GRADING, settings
from tools.grading import batch, edition, stamps
from tools.grading.gradebook import entries
from tools.grading.grades import Exercise, Grade, load, save
from tools.grading.stop import alone
from tools.grading.tables import moodle, write
from tools.grading.task import SUBMITTED, Task


def rows(root: Path, name: str) -> list[dict]:
    with open(root / GRADING / f"{name}.csv", newline="") as file:
        return list(csv.DictReader(file))


# The batch, with work that is not grading. The oracle is the clock, and what is alive.


def tasks(root: Path, *what: str) -> list[Task]:
    return [Task(root, str(i), name) for i, name in enumerate(what)]


@pytest.fixture(scope="module", autouse=True)
def served():
    """The server imports what it forks; that is no part of the times below."""
    list(batch.run(tasks(Path(), "sleep"), 1, 1, work=play))


def test_two_at_a_time_are_two_at_a_time(tmp_path):
    said = [each for _, each in batch.run(tasks(tmp_path, *["sleep"] * 5), 2, 1, work=play)]
    moments = sorted([(each["from"], 1) for each in said] + [(each["to"], -1) for each in said])
    at_once = [sum(step for _, step in moments[: i + 1]) for i in range(len(moments))]
    assert len(said) == 5 and max(at_once) == 2


def test_one_that_dies_or_hangs_stops_nobody_and_ends_with_what_it_started(tmp_path):
    played = batch.run(tasks(tmp_path, "die", "hang", "raise", "sleep"), 2, 0.15, work=play)
    said = {task.lab: each for task, each in played}
    assert said["sleep"]["problem"] is None
    assert "ended by signal 9" in said["die"]["problem"] and said["die"]["died"]
    assert "ended with code 1" in said["raise"]["problem"]
    assert said["hang"] == {"problem": "stopped after 0.15 minutes", "limit": 0.15}
    assert not psutil.pid_exists(int((tmp_path / "child").read_text()))


def test_a_stop_ends_what_runs(tmp_path):
    started = time.monotonic()
    many = batch.run(tasks(tmp_path, "hang", "sleep"), 2, 1, lambda: (tmp_path / "child").exists(), work=play)
    assert [task.lab for task, _ in many] in ([], ["sleep"]) and time.monotonic() - started < 20
    assert not psutil.pid_exists(int((tmp_path / "child").read_text()))


def test_a_ctrl_c_that_comes_before_a_process_is_on_its_own_is_not_for_it():
    """And one that comes afterwards is."""
    script = """import os, signal
from tools.grading.stop import hear_no_other
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
os.kill(os.getpid(), signal.SIGINT)
hear_no_other()
print("goes on", flush=True)
os.kill(os.getpid(), signal.SIGINT)
print("too far")"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "goes on\n" and done.stderr.endswith("KeyboardInterrupt\n")


def test_a_folder_is_graded_by_one(tmp_path):
    with alone(tmp_path), pytest.raises(ValueError, match="another grading is at work"), alone(tmp_path):
        pass
    with alone(tmp_path):
        pass


# Records and tables, without grading.


def graded(student: str, lab: str, *scores: float | None, **others) -> Grade:
    each = [Exercise(f"part-{i}", 3, score, waiting=score is None) for i, score in enumerate(scores)]
    return Grade(student, lab, each, **others)


def test_a_record_comes_back_and_a_broken_one_is_none(tmp_path):
    first = graded("anna", "lab01", 3, None, stamp="s", notes=["a note"])
    first.after(graded("anna", "lab01", 1, None))
    save(tmp_path, first)
    back = load(tmp_path, "anna", "lab01")
    assert back is not None and [*map(list, first.changes)] == [["part-0", 1, 3]] == back.changes
    assert (back.score, back.max_score, back.status, back.exercises) == (3, 6, "waiting", first.exercises)
    path = tmp_path / GRADING / "records" / "anna" / "lab01.json"
    for text in ("", "[]", "{}", path.read_text().replace("max_score", "most")):
        path.write_text(text)
        assert load(tmp_path, "anna", "lab01") is None


def test_moodle_has_a_line_a_student_and_no_score_that_is_not_final():
    grades = [
        graded("anna", "lab01", 3, 1),
        graded("anna", "lab02", 2, None),
        graded("ben", "lab02", 0),
        Grade("cy", "lab01"),
    ]
    assert moodle(grades) == [["username", "lab01", "lab02"], ["anna", 4, ""], ["ben", "", 0], ["cy", "", ""]]


def test_no_text_of_a_student_is_a_formula(tmp_path):
    hostile = graded("=anna", "lab01", 3, notes=["+1"])
    hostile.exercises[0].said = '=HYPERLINK("http://example.com")'
    write(tmp_path, [hostile])
    cells = [cell for name in ("scores", "points", "moodle") for row in rows(tmp_path, name) for cell in row.values()]
    assert not any(cell.startswith(("=", "+", "-", "@")) for cell in cells) and "'=anna" in cells


def test_stamps_follow_contents_and_names(tmp_path):
    (tmp_path / "a").write_text("x")
    made = [stamps.of_files([tmp_path], tmp_path)]
    os.utime(tmp_path / "a", (1, 1))
    assert stamps.of_files([tmp_path], tmp_path) == made[0]
    for name, text in (("a", "y"), ("b", "x"), ("__pycache__/c", "")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
        made.append(stamps.of_files([tmp_path], tmp_path))
    assert len({*made}) == 3 and made[-1] == made[-2]


# The command.


@pytest.fixture(scope="module")
def begun(course) -> tuple[Path, nbformat.NotebookNode]:  # noqa: F811
    """A course with an empty gradebook and the lab's edition, which take seconds to make."""
    edition.cached(course[0], LAB)
    return course


@pytest.fixture
def small(begun, tmp_path) -> tuple[Path, nbformat.NotebookNode]:
    """A course of its own, with two submissions."""
    shutil.copytree(begun[0], tmp_path, dirs_exist_ok=True)
    for student in ("anna", "ben"):
        hand_in(tmp_path, student, solved(begun[1], "square"))
    return tmp_path, begun[1]


def command(root: Path, *options: str) -> int:
    return grade.main(["--root", str(root), *options])


@pytest.mark.slow
def test_a_course_of_a_term(small, capsys):
    """Graded once; not again; again what changed; a person's points; a corrected check; a new export."""
    root, released = small
    assert command(root) == 0
    first = rows(root, "scores")
    pages = {path: path.stat().st_mtime_ns for path in (root / GRADING).rglob("*.html")}
    assert [(row["student"], row["score"]) for row in first] == [("anna", "3.0"), ("ben", "3.0")] and len(pages) == 2

    capsys.readouterr()
    assert command(root) == 0 and "2 of 2 have not changed" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in pages} == pages and rows(root, "scores") == first

    path = root / SUBMITTED / "ben" / LAB / f"{LAB}.ipynb"
    path.write_text(json.dumps(solved(released, "double", "square")))
    assert command(root) == 0
    said = capsys.readouterr().out
    assert (
        "1 of 2 have not changed" in said
        and "ben lab01-tiny: double-check 0 -> 2" in said
        and "anna lab01-tiny:" not in said
    )
    assert rows(root, "changes") == [dict(student="ben", lab=LAB, exercise="double-check", old="0.0", new="2.0")]

    with Gradebook(settings(root).CourseDirectory.db_url) as book:  # as formgrader does
        entry = entries(book, "anna", LAB)["double-check"]
        entry.manual_score, entry.needs_manual_grade = 1.5, False
        book.find_comment("double", LAB, LAB, "anna").manual_comment = "nearly <script>x</script>"
        book.db.commit()
    pages = {path: path.stat().st_mtime_ns for path in (root / GRADING / "autograded").rglob("*.ipynb")}
    assert command(root, "--export") == 0
    assert [row["score"] for row in rows(root, "scores")] == ["4.5", "5.0"]
    assert [row["by"] for row in rows(root, "points")] == ["manual", "automatic", "automatic", "automatic"]
    assert {path: path.stat().st_mtime_ns for path in pages} == pages  # nothing was executed
    assert "nearly" in (root / GRADING / "feedback" / "anna" / LAB / f"{LAB}.html").read_text()

    source = source_notebook()
    source.cells[-1] = check_cell("square-check", "square", "assert square(2) == 5", 3)
    nbformat.write(source, root / "solutions" / LAB / f"{LAB}.ipynb")
    capsys.readouterr()
    assert command(root) == 0
    said = capsys.readouterr().out
    assert said.count("square-check 3 -> 0") == 2 and "have not changed" not in said
    assert [(row["score"], row["status"]) for row in rows(root, "scores")] == [("1.5", "graded"), ("2.0", "graded")]
    page = (root / GRADING / "feedback" / "anna" / LAB / f"{LAB}.html").read_text()
    assert "nearly" in page and "<script" not in page

    source.cells = [
        *source_notebook().cells[:4],
        check_cell("half", "double", "assert double(1) == 2", 1),
    ]  # one goes, one comes
    nbformat.write(source, root / "solutions" / LAB / f"{LAB}.ipynb")
    assert command(root) == 0
    now = {(row["student"], row["exercise"]): (row["score"], row["by"]) for row in rows(root, "points")}
    assert now == {
        ("anna", "double-check"): ("1.5", "manual"), ("anna", "half"): ("0.0", "automatic"),
        ("ben", "double-check"): ("2.0", "automatic"), ("ben", "half"): ("1.0", "automatic"),
    }  # fmt: skip


@pytest.mark.slow
def test_a_stop_at_any_moment_leaves_whole_tables_and_the_next_run_goes_on(small):
    root, _ = small
    before: set[str] = set()
    for after in [random.Random(0).uniform(0.2, 6) for _ in range(3)]:
        running = subprocess.Popen(
            [sys.executable, "-m", "tools.grade", "--root", str(root)], cwd=ROOT, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        time.sleep(after)
        os.killpg(running.pid, signal.SIGINT)
        _, said = running.communicate(timeout=60)
        assert running.returncode in (0, 130, -signal.SIGINT), said  # the last: before Python was there
        assert running.returncode == -signal.SIGINT or "Traceback" not in said
        now = {row["student"] for row in rows(root, "scores")} if (root / GRADING / "scores.csv").exists() else set()
        assert now >= before
        before = now
    assert command(root) == 0 and [row["score"] for row in rows(root, "scores")] == ["3.0", "3.0"]


def test_options_that_cannot_be_are_one_sentence(tmp_path, capsys):
    for options, said in ((["--jobs", "0"], "--jobs is 0"), (["--again", "--export"], "--export executes nothing")):
        assert command(tmp_path, *options) == 2
        complaint = capsys.readouterr().err
        assert said in complaint and complaint.count("\n") == 1


def test_nothing_to_export_is_one_sentence(small, capsys):
    assert command(small[0], "--export") == 2
    assert capsys.readouterr().err == "grade: nothing of it has been graded: start without --export\n"
