"""The table of attacks, graded end to end: what each gained, and what others lost. Nothing, but for what ``off`` says.

Each kind of attack is a class that is graded at once, with honest students before and behind. The oracles are the
points that the attacker's own honest exercise is worth, and a walk over all files with checksums of its own.
"""

import csv
import hashlib
import os
import re
import signal
import sqlite3
import stat
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tests import attacks
from tools import ROOT

KINDS = ("files", "patching", "reading", "forging", "process", "outputs")
HONEST = ("a-honest", "z-honest")
WRITTEN = (  # what the grader writes itself, below build/grading
    "autograded", "checked", "feedback", "logs", "release", "records", "editions", "scores.csv", "points.csv",
    "changes.csv", "moodle.csv", "gradebook.db", ".nbgrader.log", ".lock",
)  # fmt: skip
MINE = (  # what Jupyter and matplotlib keep in a home folder
    ".cache", ".local/share/jupyter/nbsignatures.db", ".local/share/jupyter/notebook_secret",
    ".local/share/jupyter/runtime", ".ipython/profile_default/history.sqlite", ".config/matplotlib/fontlist",
)  # fmt: skip


@cache
def can_be_shut_in() -> bool:
    """Whether this grader has a box at all."""
    said = subprocess.run([sys.executable, "-m", "tools.grade", "--help"], cwd=ROOT, capture_output=True, text=True)
    return "--sandbox" in said.stdout


@dataclass
class Batch:
    root: Path
    home: Path
    rows: dict[str, dict]
    before: dict[str, tuple]
    after: dict[str, tuple]
    said: str


def sums(root: Path, home: Path) -> dict[str, tuple]:
    """Mode, and digest or target, of all that is not the grader's own to write."""
    found = {}
    for folder, own in ((root, [f"build/grading/{name}" for name in WRITTEN]), (home, MINE)):
        for path in sorted(folder.rglob("*")):
            name = path.relative_to(folder).as_posix()
            if any(name == each or name.startswith(f"{each}/") for each in own) or "__pycache__" in name:
                continue
            status = path.lstat()
            what = os.readlink(path) if path.is_symlink() else ""
            if stat.S_ISREG(status.st_mode):
                what = hashlib.sha256(path.read_bytes()).hexdigest()
            if not stat.S_ISDIR(status.st_mode) or not any(each.startswith(name) for each in own):
                found[str(path)] = (status.st_mode, what)
    return found


@pytest.fixture(scope="module", params=[f"{kind}-{way}" for way in ("auto", "off") for kind in KINDS])
def batch(request, tmp_path_factory):
    if not can_be_shut_in():
        pytest.skip("this grader has no --sandbox")
    kind, way = request.param.split("-")
    folder = tmp_path_factory.mktemp(request.param)
    root, home = folder / "course", folder / "home"
    root.mkdir(), home.mkdir()
    attacks.make_course(root)
    honest = {name: attacks.right(name) for name in attacks.SOLUTION}
    for student in HONEST:
        attacks.hand_in(root, student, honest)
    attacks.hand_in(root, "z-untouched", {})
    for number, each in enumerate(attacks.ATTACKS):
        if each.kind == kind:
            answers = {"double": attacks.right("double"), "square": each.text(root, home)}
            attacks.hand_in(root, attacks.attacker(number), answers, each.change)
    (home / ".bashrc").write_text("# the grader's own\n")
    before = sums(root, home)
    environment = {
        "PATH": os.environ["PATH"], "HOME": str(home), "PYTHONPATH": str(ROOT), "LANG": "C.UTF-8",
        "ANSWER_SECONDS": "10", "MARK_OF_ATTACKS": str(folder),
    }  # fmt: skip
    command = [sys.executable, "-m", "tools.grade", "--root", str(root), "--minutes", "3", f"--sandbox={way}"]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=1500
    )
    time.sleep(2)  # for what acts later
    with open(root / attacks.GRADING / "scores.csv", newline="") as file:
        rows = {row["student"]: row for row in csv.DictReader(file)}
    yield Batch(root, home, rows, before, sums(root, home), done.stdout)
    for process in left(folder):
        os.kill(process, signal.SIGKILL)


def left(folder: Path) -> list[int]:
    """Processes that name this folder in their command or environment, and are none of ours."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            told = (path / "environ").read_bytes() + (path / "cmdline").read_bytes()
        except OSError:
            continue
        if str(folder).encode() in told and int(path.name) != os.getpid():
            found.append(int(path.name))
    return found


def test_an_attacker_gets_the_points_of_their_own_honest_exercise(batch, request):
    kind, way = request.node.callspec.params["batch"].split("-")
    wrong = {}
    for number, each in enumerate(attacks.ATTACKS):
        if each.kind == kind:
            row = batch.rows.get(attacks.attacker(number), {})
            most = each.off if way == "off" else each.most
            if row.get("status") != "graded" or not each.least <= float(row["score"]) <= most:
                wrong[each.name] = row
    assert wrong == {}


def test_nobody_else_gains_or_loses(batch):
    others = {name: float(batch.rows[name]["score"]) for name in (*HONEST, "z-untouched")}
    assert others == {"a-honest": 5, "z-honest": 5, "z-untouched": 0}
    invented = [name for name in batch.rows if not re.fullmatch(r"m\d\d-attacker", name)]
    assert sorted(invented) == sorted(others)


def test_the_gradebook_says_the_same(batch):
    with sqlite3.connect(batch.root / attacks.GRADING / "gradebook.db") as book:
        assert book.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        found = dict(book.execute(
            "SELECT assignment.student_id, sum(coalesce(grade.manual_score, grade.auto_score)) FROM grade "
            "JOIN submitted_notebook AS notebook ON grade.notebook_id = notebook.id "
            "JOIN submitted_assignment AS assignment ON notebook.assignment_id = assignment.id GROUP BY 1"
        ).fetchall())  # fmt: skip
    assert found == {name: float(row["score"]) for name, row in batch.rows.items() if row["score"]}


def test_all_files_are_bit_for_bit_what_they_were(batch):
    changed = {name for name in {*batch.before, *batch.after} if batch.before.get(name) != batch.after.get(name)}
    assert changed == set()


def test_no_process_stays_behind(batch):
    assert left(batch.home.parent) == []


def test_no_script_is_on_a_page(batch):
    pages = list((batch.root / attacks.GRADING).glob("feedback/*/*/*.html"))
    assert len(pages) == len([row for row in batch.rows.values() if row["status"] == "graded"])
    for page in pages:
        text = page.read_text(encoding="utf8", errors="replace")
        assert not re.search(r"<script[^>]*>[^<]*attack-script|onerror=.?alert|href=.?javascript:", text), page
        assert "\x1b" not in text and page.stat().st_size < 5_000_000, page


def test_the_table_is_long_enough_and_every_kind_is_there():
    assert len(attacks.ATTACKS) >= 60
    assert {each.kind for each in attacks.ATTACKS} == set(KINDS)
    assert len({each.name for each in attacks.ATTACKS}) == len(attacks.ATTACKS)
