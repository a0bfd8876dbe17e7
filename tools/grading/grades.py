"""What grading one submission came to, and its record: a small JSON file that says what was graded, and how.

A record is written whole, when its submission is finished, and replaced by the next one. So the scores of a class are
the records of its submissions, whatever was stopped, and whenever. ``stamp`` says of which files, of which version of
the lab and of which course a record is; ``changes`` has what it changed in the record before it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from minigpt.memory.readings import write_atomically
from tools.grade_one import GRADING

RECORDS = GRADING / "records"


@dataclass
class Exercise:
    """The points of one graded cell. ``auto`` is the grader's, ``manual`` a person's, who has the last word."""

    name: str
    max_score: float
    auto: float | None = None
    manual: float | None = None
    extra: float = 0.0  # given by a person on top
    waiting: bool = False  # for a person
    verdict: str = ""  # its id
    said: str = ""  # its sentence

    @property
    def score(self) -> float | None:
        """None as long as neither the grader nor a person has given points."""
        given = self.auto if self.manual is None else self.manual
        return None if given is None else given + self.extra

    @property
    def by(self) -> str:
        return "waiting" if self.waiting else "automatic" if self.manual is None else "manual"


@dataclass
class Grade:
    """The stated result of one submission: points, or a problem in a sentence."""

    student: str
    lab: str
    exercises: list[Exercise] = field(default_factory=list)  # none: there is no grade
    notes: list[str] = field(default_factory=list)
    stamp: str = ""  # of everything that decides the grade
    files: str = ""  # of what the student handed in
    limit: float | None = None  # minutes after which it was stopped
    seconds: float | None = None  # that it took
    changes: list[tuple[str, float | None, float | None]] = field(default_factory=list)  # (exercise, old, new)

    @property
    def status(self) -> str:
        if not self.exercises:
            return "failed"
        return "waiting" if any(each.waiting for each in self.exercises) else "graded"

    @property
    def score(self) -> float | None:
        return sum((each.score or 0.0 for each in self.exercises), 0.0) if self.exercises else None

    @property
    def max_score(self) -> float | None:
        return sum(each.max_score for each in self.exercises) if self.exercises else None

    @property
    def points(self) -> dict[str, float | None]:
        return {each.name: each.score for each in self.exercises}

    @property
    def said(self) -> list[str]:
        """The notes, after how many points wait for a person."""
        waiting = sum(each.max_score for each in self.exercises if each.waiting)
        return [f"{waiting:g} points wait for a person", *self.notes] if waiting else self.notes

    def after(self, old: Grade) -> None:
        """Note the exercises that have other points than in ``old``, or that are new or gone."""
        self.changes = [(name, old.points.get(name), self.points.get(name)) for name in {**old.points, **self.points}
                        if old.points.get(name) != self.points.get(name)]  # fmt: skip


def record(root: Path, student: str, lab: str) -> Path:
    return root / RECORDS / student / f"{lab}.json"


def save(root: Path, grade: Grade) -> None:
    write_atomically(record(root, grade.student, grade.lab), json.dumps(asdict(grade), indent=1))


def load(root: Path, student: str, lab: str) -> Grade | None:
    """The last record of a submission; None where there is none, or none that can be read."""
    try:
        content = json.loads(record(root, student, lab).read_text(encoding="utf8"))
        exercises = [Exercise(**each) for each in content.pop("exercises")]
        return Grade(**content, exercises=exercises)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
