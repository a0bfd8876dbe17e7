"""What is to be done about one submission. Nothing that takes long is imported: the process that asks has no torch."""

from __future__ import annotations

from dataclasses import dataclass
from multiprocessing import connection
from pathlib import Path

from tools.grade_one import GRADING

SUBMITTED = GRADING / "submitted"


@dataclass(frozen=True)
class Task:
    root: Path
    student: str
    lab: str
    released: Path | None = None  # the student version; None: only its feedback is written again
    hidden: bool = False  # hidden tests and mark schemes stay in the feedback
    same: bool = False  # the student's files are those that were graded last
    sandbox: str = "auto"

    @property
    def log(self) -> Path:
        return self.root / GRADING / "logs" / f"{self.student}-{self.lab}.log"


def work(task: Task, answer: connection.Connection) -> None:
    """Do it, where everything has been imported, and answer as ``worker.work`` says."""
    from tools.grading import worker

    worker.work(task, answer)
