"""Grade what lies in build/grading/submitted/STUDENT/LAB/: ``python -m tools.grade`` (``make grade``).

    submitted/   what students handed in; never changed
    checked/     the same, looked over and repaired (tools/grading/submission.py); this is what nbgrader reads
    autograded/  executed and graded; feedback/ is the page for the student
    scores.csv   a line a submission; points.csv a line an exercise; logs/ what nbgrader said

One process a submission (tools/grade_one.py). Each submission ends in a stated result: graded; waiting for a person
(written answers); or failed, with the reason. Exit code 0: all graded or waiting; 1: some failed; 2: nothing to grade.

Left out: shutting students' code in. It runs with the rights of whoever grades; grade strangers in a container.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from nbgrader.api import Gradebook, MissingEntry
from nbgrader.apps import NbGraderAPI
from tqdm import tqdm

from minigpt.memory.readings import write_atomically
from tools import ROOT
from tools.grade_one import GRADING, last_error, settings
from tools.grading.submission import check
from tools.supervise import kill_tree

FOLDER = GRADING / "submitted"
LONGEST = 10_000  # minutes, a week
SCORES = ["student", "lab", "status", "score", "max_score", "notes"]
POINTS = ["student", "lab", "exercise", "score", "max_score"]


@dataclass
class Grade:
    """The stated result of one submission. Points are None where there is no grade."""

    student: str
    lab: str
    status: str = "failed"  # "graded", "waiting" (for a person) or "failed"
    score: float | None = None
    max_score: float | None = None
    notes: list[str] = field(default_factory=list)
    points: dict[str, tuple[float, float]] = field(default_factory=dict)  # exercise: (score, out of)


def submitted(root: Path) -> list[tuple[str, str]]:
    """All (student, lab) pairs in the folder of submissions."""
    found = sorted((path.parent.name, path.name) for path in (root / FOLDER).glob("*/*") if path.is_dir())
    return [pair for pair in found if not any(name.startswith(".") for name in pair)]


def choose(found: list[tuple[str, str]], labs: list[str], students: list[str]) -> list[tuple[str, str]]:
    """The pairs that --lab and --student ask for; all, where they ask for nothing. Raises ValueError for none."""
    if not found:
        raise ValueError(f"nothing is submitted; put notebooks into {FOLDER}/STUDENT/LAB/LAB.ipynb")
    for option, names, i in (("--student", students, 0), ("--lab", labs, 1)):
        there = sorted({pair[i] for pair in found})
        for name in names:
            if not any(_is(name, other) for other in there):
                raise ValueError(f"{option} is {name!r}; {FOLDER} has {', '.join(there)}")
        found = [pair for pair in found if not names or any(_is(name, pair[i]) for name in names)]
    if not found:
        raise ValueError("no student in --student has submitted a lab in --lab")
    return found


def _is(name: str, whole: str) -> bool:
    return name in (whole, whole.split("-")[0])


def release(root: Path, lab: str) -> Path:
    """Tell the gradebook about ``lab`` and make its student version to compare with. Raises ValueError."""
    source = root / "solutions" / lab / f"{lab}.ipynb"
    if not source.exists():
        labs = sorted(path.parent.name for path in (root / "solutions").glob("*/*.ipynb"))
        raise ValueError(f"there is no lab {lab}; there is {', '.join(labs) or 'none: make them with make notebooks'}")
    answer = NbGraderAPI(config=settings(root)).generate_assignment(lab, force=True, create=True)
    if not answer["success"]:
        raise ValueError(f"nbgrader could not read solutions/{lab}: {last_error(answer.get('log', ''))}")
    return root / GRADING / "release" / lab / f"{lab}.ipynb"


def grade_submission(root: Path, student: str, lab: str, released: Path, minutes: float) -> Grade:
    """Look over, grade and write feedback for one submission. Always returns; what went wrong is in the notes."""
    grade, folder = Grade(student, lab), root / GRADING
    for step in ("checked", "autograded", "feedback"):  # nothing of an earlier grading stays
        shutil.rmtree(folder / step / student / lab, ignore_errors=True)
    try:
        repairs = check(root / FOLDER / student / lab, released, folder / "checked" / student / lab / released.name)
    except (ValueError, OSError) as error:
        grade.notes.append(str(error))
        return grade
    log = folder / "logs" / f"{student}-{lab}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    path = os.pathsep.join(filter(None, [str(root), str(ROOT), os.environ.get("PYTHONPATH")]))
    with open(log, "w", encoding="utf8") as file:
        worker = subprocess.Popen(
            [sys.executable, "-m", "tools.grade_one", str(root), lab, student], cwd=folder, text=True,
            stdout=subprocess.PIPE, stderr=file, env=dict(os.environ, PYTHONPATH=path), start_new_session=True,
        )  # fmt: skip
        try:
            said, _ = worker.communicate(timeout=60 * minutes)
            problem = json.loads(said.splitlines()[-1])["problem"]
        except subprocess.TimeoutExpired:
            problem = f"stopped after {minutes:g} minutes"
        except (IndexError, ValueError, KeyError, TypeError):
            problem = f"the process that graded it ended with code {worker.returncode}; see {log.relative_to(root)}"
        finally:  # also on Ctrl-C
            kill_tree(worker.pid)
    grade.notes += ([problem] if problem else []) + repairs
    if problem is None or problem.startswith("graded"):
        read_scores(root, grade)
    return grade


def read_scores(root: Path, grade: Grade) -> None:
    """Fill in what the gradebook says."""
    with Gradebook(settings(root).CourseDirectory.db_url) as book:
        try:
            submission = book.find_submission(grade.lab, grade.student)
        except MissingEntry:
            grade.notes.append("nbgrader left no entry in the gradebook")
            return
        grade.score, grade.max_score = submission.score, submission.max_score
        grade.status = "waiting" if submission.needs_manual_grade else "graded"
        grades = [entry for notebook in submission.notebooks for entry in notebook.grades]
        grade.points = {entry.name: (entry.score, entry.max_score) for entry in grades}
        by_hand = sum(entry.max_score for entry in grades if entry.needs_manual_grade)
    if by_hand:
        grade.notes.insert(0, f"{by_hand:g} points wait for a person")


def write_scores(root: Path, grades: list[Grade], keep: set[tuple[str, str]]) -> None:
    """scores.csv and points.csv, each replaced whole; lines of the pairs in ``keep`` stay from the last time."""
    scores: list[list[object]] = [
        [g.student, g.lab, g.status, g.score, g.max_score, "; ".join(g.notes)] for g in grades
    ]
    points: list[list[object]] = [[g.student, g.lab, name, *pair] for g in grades for name, pair in g.points.items()]
    for name, header, rows in (("scores.csv", SCORES, scores), ("points.csv", POINTS, points)):
        path = root / GRADING / name
        if path.exists():
            with open(path, encoding="utf8", newline="") as file:
                rows += [[*row] for row in list(csv.reader(file))[1:] if tuple(row[:2]) in keep]
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(
            [header, *sorted(rows, key=lambda row: list(map(str, row[:2])))]
        )
        write_atomically(path, text.getvalue())


def show(grades: list[Grade]) -> str:
    """The scores as a table for the terminal."""
    lines = []
    width = max(len(grade.student) for grade in grades) + 2
    for grade in grades:
        score = "no score" if grade.score is None else f"{grade.score:g} of {grade.max_score:g}"
        lines.append(f"{grade.student:{width}}{grade.lab:26} {score:>14}  {grade.status}")
        lines += [f"{'':{width}}{note}" for note in grade.notes]
    return "\n".join(lines)


def grade_all(root: Path, labs: list[str], students: list[str], minutes: float) -> list[Grade]:
    """Grade every submission asked for. Raises ValueError where there is nothing to grade."""
    pairs = choose(submitted(root), labs, students)
    others = set(submitted(root)) - set(pairs)
    grades: list[Grade] = []
    released: dict[str, Path | ValueError] = {}
    for student, lab in tqdm(pairs, unit="submission", dynamic_ncols=True, disable=None):
        try:
            if lab not in released:
                released[lab] = release(root, lab)
        except ValueError as error:
            released[lab] = error
        where = released[lab]
        if isinstance(where, ValueError):
            grades.append(Grade(student, lab, notes=[str(where)]))
        else:
            grades.append(grade_submission(root, student, lab, where, minutes))
        write_scores(root, grades, others)
    return grades


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.grade", description=__doc__.splitlines()[0])
    parser.add_argument("--lab", action="append", default=[], metavar="NAME", help="only this lab")
    parser.add_argument("--student", action="append", default=[], metavar="NAME", help="only this student")
    parser.add_argument("--minutes", type=float, default=30, help="the most that one submission may take (default 30)")
    parser.add_argument("--root", type=Path, default=ROOT, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    try:
        if not 0 < args.minutes <= LONGEST:
            raise ValueError(f"--minutes is {args.minutes:g}; it must be more than 0 and at most {LONGEST}")
        if not args.root.is_dir():
            raise ValueError(f"--root is {str(args.root)!r}; there is no such folder")
        settings(args.root.resolve())  # said once, not for each submission
        grades = grade_all(args.root.resolve(), args.lab, args.student, args.minutes)
    except (ValueError, OSError) as error:
        print(f"grade: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"grade: stopped. What was finished is in {GRADING / 'scores.csv'}.", file=sys.stderr)
        return 130
    failed = [f"{grade.student} {grade.lab}" for grade in grades if grade.status == "failed"]
    print(show(grades))
    print(f"Scores, points of each exercise and feedback: scores.csv, points.csv and feedback/ in {GRADING}")
    if failed:
        print(f"grade: no grade for {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
