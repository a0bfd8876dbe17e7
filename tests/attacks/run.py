"""A batch of attackers, graded end to end in a tiny course of its own, with honest students before and behind."""

from __future__ import annotations

import csv
import hashlib
import os
import signal
import sqlite3
import stat
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tests import attacks
from tools import ROOT
from tools.grading import fence
from tools.grading.box import missing

OTHERS = {"a-honest": "28.0", "z-honest": "28.0", "z-untouched": "0.0"}  # and their scores
WRITTEN = (  # what the grader writes itself, below build/grading
    "autograded", "checked", "feedback", "logs", "release", "records", "editions", "scores.csv", "points.csv",
    "changes.csv", "moodle.csv", "gradebook.db", ".nbgrader.log", ".lock",
)  # fmt: skip
MINE = (  # what Jupyter and matplotlib keep in a home folder
    ".cache", ".local/share/jupyter/nbsignatures.db", ".local/share/jupyter/notebook_secret",
    ".local/share/jupyter/runtime", ".ipython/profile_default/history.sqlite", ".config/matplotlib/fontlist",
)  # fmt: skip


@dataclass
class Batch:
    """What came of it. ``places``: each row's student and exercise; ``rows`` and ``points`` of the grader's tables."""

    root: Path
    way: str
    places: dict[int, tuple[str, str]]
    rows: dict[str, dict]
    points: dict[tuple[str, str], float]
    changed: list[str]
    left: list[int]
    said: str

    def gained(self, number: int) -> float | None:
        """Points for the row's exercise; None where there is no grade."""
        student, exercise = self.places[number]
        return self.points.get((student, f"check-{exercise}"))

    def allowed(self, number: int) -> float:
        each = attacks.ATTACKS[number]
        held = self.way != "off" and not missing() or fence.there() >= each.fence
        return 0 if held else each.off

    def faults(self) -> list[str]:
        """What is not as it should be, a sentence each."""
        found = []
        for number, (student, _) in self.places.items():
            gained = self.gained(number)
            if gained is None or gained > self.allowed(number):
                found.append(f"{attacks.ATTACKS[number].name}: {gained} points; {self.rows.get(student)}")
        for student in {student for student, _ in self.places.values()}:
            found += [f"{student} has {self.points.get((student, f'check-{name}'))} points for {name}, not 2"
                      for name in ("double", "triple") if self.points.get((student, f"check-{name}")) != 2]  # fmt: skip
        theirs = {name: row["score"] for name, row in self.rows.items() if not name.endswith("-attacker")}
        found += [f"{name} has {theirs.get(name)} points, not {OTHERS.get(name)}"
                  for name in sorted({*theirs, *OTHERS}) if theirs.get(name) != OTHERS.get(name)]  # fmt: skip
        found += [f"{path} is not what it was" for path in self.changed]
        found += [f"process {process} stays behind" for process in self.left]
        return found + ([] if self.book() else ["the gradebook says something else"])

    def book(self) -> bool:
        """Whether the gradebook is whole, and says the same as the table."""
        with sqlite3.connect(self.root / attacks.GRADING / "gradebook.db") as book:
            whole = book.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            found = dict(book.execute(
                "SELECT assignment.student_id, sum(coalesce(grade.manual_score, grade.auto_score)) FROM grade "
                "JOIN submitted_notebook AS notebook ON grade.notebook_id = notebook.id "
                "JOIN submitted_assignment AS assignment ON notebook.assignment_id = assignment.id GROUP BY 1"
            ).fetchall())  # fmt: skip
        return whole and found == {name: float(row["score"]) for name, row in self.rows.items() if row["score"]}


def places(numbers: list[int]) -> dict[int, tuple[str, str]]:
    """For each row a student and an exercise: as many of a kind as there are exercises go together."""
    found: dict[int, tuple[str, str]] = {}
    kinds: dict[str, list[int]] = {}
    for number in numbers:
        each = attacks.ATTACKS[number]
        kinds.setdefault(each.name if each.change else each.kind, []).append(number)
    for them in kinds.values():
        for i, number in enumerate(them):
            first = them[i - i % len(attacks.SQUARES)]
            found[number] = f"m{first:02}-attacker", attacks.SQUARES[i % len(attacks.SQUARES)]
    return found


def hand_in(root: Path, home: Path, where: dict[int, tuple[str, str]]) -> None:
    honest = {name: attacks.right(name) for name in attacks.EXERCISES}
    for student, points in OTHERS.items():
        attacks.hand_in(root, student, honest if float(points) else {})
    for student in {student for student, _ in where.values()}:
        answers, change = {name: attacks.right(name) for name in ("double", "triple")}, None
        for number, (name, square) in where.items():
            if name == student:
                answers[square] = attacks.ATTACKS[number].text(root, home, square)
                change = attacks.ATTACKS[number].change
        attacks.hand_in(root, student, answers, change)


def grade(numbers: list[int], way: str, folder: Path) -> Batch:
    """Let these attack, with ``--sandbox=way``. What they leave running is ended afterwards."""
    root, home, where = folder / "course", folder / "home", places(numbers)
    root.mkdir(), home.mkdir()
    attacks.make_course(root)
    hand_in(root, home, where)
    (home / ".bashrc").write_text("# the grader's own\n")
    before = sums(root, home)
    environment = {
        "PATH": os.environ["PATH"], "HOME": str(home), "PYTHONPATH": str(ROOT), "LANG": "C.UTF-8",
        "OMP_NUM_THREADS": "1", "MARK_OF_ATTACKS": str(folder),
    }  # fmt: skip
    command = [sys.executable, "-m", "tools.grade", "--root", str(root), "--minutes", "15", f"--sandbox={way}"]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=6000
    )
    time.sleep(2)  # for what acts later
    after, still = sums(root, home), left(folder)
    for process in still:
        os.kill(process, signal.SIGKILL)
    rows = {row["student"]: row for row in table(root, "scores")}
    points = {(row["student"], row["exercise"]): float(row["score"] or 0) for row in table(root, "points")}
    changed = sorted(name for name in {*before, *after} if before.get(name) != after.get(name))
    return Batch(root, way, where, rows, points, changed, still, done.stdout)


def table(root: Path, name: str) -> list[dict]:
    with open(root / attacks.GRADING / f"{name}.csv", newline="") as file:
        return [*csv.DictReader(file)]


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
            if not stat.S_ISDIR(status.st_mode) or folder == root or not any(each.startswith(name) for each in own):
                found[str(path)] = (status.st_mode, what)
    return found


def left(folder: Path) -> list[int]:
    """Processes that name this folder in their command or environment, and are none of ours."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            told = (path / "environ").read_bytes() + (path / "cmdline").read_bytes()
        except OSError:
            continue
        if str(folder).encode() in told and int(path.name) not in (os.getpid(), os.getppid()):
            found.append(int(path.name))
    return found
