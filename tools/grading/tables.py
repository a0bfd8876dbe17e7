"""The tables of a class, made from the records: for people, for a learning management system, and of what changed.

    scores.csv   a line a submission        points.csv   a line an exercise
    moodle.csv   a line a student, a column a lab: Moodle's grade import (Grades > Import > CSV file) maps "username"
                 to its user name, and each lab to a grade item. An empty cell is no grade yet, failed or waiting, and
                 Moodle takes it for one (grade/import/csv/classes/load_data.php): a grade that it has goes.
    changes.csv  the exercises whose points the last grading changed

Each is replaced whole. Left out: Canvas, whose import asks for its own columns of students and sections.
"""

from __future__ import annotations

import csv
import io
from pathlib import Path

from minigpt.memory.readings import write_atomically
from tools.grade_one import GRADING
from tools.grading.grades import Grade

SCORES = ["student", "lab", "status", "score", "max_score", "notes"]
POINTS = ["student", "lab", "exercise", "score", "max_score", "by", "verdict", "said"]
CHANGES = ["student", "lab", "exercise", "old", "new"]
Row = list[object]


def write(root: Path, grades: list[Grade]) -> None:
    """All tables of these grades, which are all there are. Raises OSError."""
    grades = sorted(grades, key=lambda grade: (grade.student, grade.lab))
    scores: list[Row] = [[g.student, g.lab, g.status, g.score, g.max_score, "; ".join(g.said)] for g in grades]
    points: list[Row] = [[g.student, g.lab, each.name, each.score, each.max_score, each.by, each.verdict, each.said]
                         for g in grades for each in g.exercises]  # fmt: skip
    tables: dict[str, list[Row]] = {"scores": [[*SCORES], *scores], "points": [[*POINTS], *points],
              "moodle": moodle(grades), "changes": [[*CHANGES], *changes(grades)]}  # fmt: skip
    for name, rows in tables.items():
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([[_plain(value) for value in row] for row in rows])
        write_atomically(root / GRADING / f"{name}.csv", text.getvalue())


def _plain(value: object) -> object:
    """A text that no spreadsheet takes for a formula: students write some of these."""
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) else value


def moodle(grades: list[Grade]) -> list[Row]:
    labs = sorted({grade.lab for grade in grades})
    rows: dict[str, dict[str, object]] = {grade.student: {} for grade in grades}
    for grade in grades:
        rows[grade.student][grade.lab] = grade.score if grade.status == "graded" else ""
    return [["username", *labs], *([student, *(row.get(lab, "") for lab in labs)] for student, row in rows.items())]


def changes(grades: list[Grade]) -> list[Row]:
    return [[grade.student, grade.lab, *change] for grade in grades for change in grade.changes]


def shown(grades: list[Grade]) -> str:
    """The scores, for a terminal."""
    lines = []
    width = max(len(grade.student) for grade in grades) + 2
    for grade in grades:
        score = "no score" if grade.score is None else f"{grade.score:g} of {grade.max_score:g}"
        lines.append(f"{grade.student:{width}}{grade.lab:26} {score:>14}  {grade.status}")
        lines += [f"{'':{width}}{note}" for note in grade.said]
    return "\n".join(lines)


def shown_changes(grades: list[Grade]) -> str:
    """What changed, for a terminal; empty where nothing did."""
    return "\n".join(
        f"  {student} {lab}: {name} {'no points' if old is None else f'{old:g}'} -> "
        f"{'no points' if new is None else f'{new:g}'}" for student, lab, name, old, new in changes(grades)
    )  # fmt: skip
