"""nbgrader's gradebook: what grading leaves in it, and what people put there in formgrader.

Several processes write to it at a time. SQLite lets one write and the others wait, for as many seconds as
``settings`` says. Students are entered before the processes start: two that enter the same one are an error, no wait.
"""

from __future__ import annotations

from pathlib import Path

import nbformat
from nbgrader.api import Grade as Entry
from nbgrader.api import Gradebook, MissingEntry
from nbgrader.apps import NbGraderAPI
from nbgrader.utils import is_grade, is_task

from tools.grade_one import GRADING, last_error, settings
from tools.grading.follow import follow
from tools.grading.grades import Exercise, Grade
from tools.grading.stop import deaf


def opened(root: Path) -> Gradebook:
    return Gradebook(settings(root).CourseDirectory.db_url)


def begin(root: Path) -> None:
    """Make the gradebook, if there is none. nbgrader starts a program for that, which Ctrl-C would end half-way."""
    with deaf():
        opened(root).close()


def release(root: Path, lab: str) -> Path:
    """Tell the gradebook about ``lab`` and make its student version to compare with. Raises ValueError."""
    source = root / "solutions" / lab / f"{lab}.ipynb"
    if not source.exists():
        labs = sorted(path.parent.name for path in (root / "solutions").glob("*/*.ipynb"))
        raise ValueError(f"there is no lab {lab}; there is {', '.join(labs) or 'none: make them with make notebooks'}")
    with opened(root) as book:
        follow(book, lab, source)
    answer = NbGraderAPI(config=settings(root)).generate_assignment(lab, force=True, create=True)
    if not answer["success"]:
        raise ValueError(f"nbgrader could not read solutions/{lab}: {last_error(answer.get('log', ''))}")
    return root / GRADING / "release" / lab / f"{lab}.ipynb"


def enter(root: Path, students: set[str]) -> None:
    with opened(root) as book:
        for student in sorted(students):
            book.update_or_create_student(student)


def entries(book: Gradebook, student: str, lab: str) -> dict[str, Entry]:
    """{exercise: its entry}; raises ValueError where there is none."""
    try:
        submission = book.find_submission(lab, student)
    except MissingEntry:
        raise ValueError("nbgrader left no entry in the gradebook") from None
    return {entry.name: entry for notebook in submission.notebooks for entry in notebook.grades}


def waiting(root: Path, student: str, lab: str) -> list[str]:
    """The exercises that a person is still to grade."""
    with opened(root) as book:
        try:
            return [name for name, entry in entries(book, student, lab).items() if entry.needs_manual_grade]
        except ValueError:
            return []


def seen(root: Path, student: str, lab: str) -> dict[str, float]:
    """{exercise: points} that a person gave and has not been asked to look at again."""
    with opened(root) as book:
        try:
            found = entries(book, student, lab)
        except ValueError:
            return {}
        return {name: e.manual_score for name, e in found.items()
                if e.manual_score is not None and not e.needs_manual_grade}  # fmt: skip


def still_seen(root: Path, student: str, lab: str, before: dict[str, float]) -> None:
    """Nothing that the student wrote has changed: what a person had looked at is not to be looked at again.

    By itself nbgrader asks for that after each grading, also where the check was corrected and the answer is the same.
    """
    with opened(root) as book:
        for name, entry in entries(book, student, lab).items():
            if name in before and entry.manual_score == before[name]:
                entry.needs_manual_grade = False
        book.db.commit()


def exercises(root: Path, student: str, lab: str) -> list[Exercise]:
    """The points of each exercise, in the notebook's order, with what the check said. Raises ValueError."""
    graded = root / GRADING / "autograded" / student / lab / f"{lab}.ipynb"
    verdicts = {cell.metadata.nbgrader.grade_id: verdict(cell)
                for cell in nbformat.read(graded, as_version=4).cells if is_grade(cell) or is_task(cell)}  # fmt: skip
    with opened(root) as book:
        found = entries(book, student, lab)
        made = {name: _exercise(entry, *verdicts.get(name, ("", ""))) for name, entry in found.items()}
    return [made[name] for name in [*verdicts, *(name for name in made if name not in verdicts)] if name in made]


def _exercise(entry: Entry, verdict: str, said: str) -> Exercise:
    made = Exercise(entry.name, entry.max_score, entry.auto_score, verdict=verdict, said=said)
    return _by_hand(made, entry)


def _by_hand(exercise: Exercise, entry: Entry) -> Exercise:
    exercise.manual, exercise.extra = entry.manual_score, entry.extra_credit or 0.0
    exercise.waiting = bool(entry.needs_manual_grade)
    return exercise


def by_hand(root: Path, grades: list[Grade]) -> list[Grade]:
    """Bring in what people gave in formgrader since. Returns the grades that this has changed."""
    changed = []
    with opened(root) as book:
        for grade in grades:
            try:
                found = entries(book, grade.student, grade.lab) if grade.exercises else {}
            except ValueError:  # somebody has begun a new gradebook: what was recorded stays
                continue
            old = [(each.manual, each.extra, each.waiting) for each in grade.exercises]
            for each in grade.exercises:
                if each.name in found:
                    _by_hand(each, found[each.name])
            if old != [(each.manual, each.extra, each.waiting) for each in grade.exercises]:
                changed.append(grade)
    return changed


def verdict(cell) -> tuple[str, str]:
    """(id, sentence) of what a check cell came to, from its outputs; empty where there is nothing to say."""
    known = cell.get("metadata", {}).get("verdict", "")  # whoever judged it wrote it there
    for output in cell.get("outputs", []):
        if output.output_type == "error" and output.ename == "Wrong":
            return known, output.evalue.strip()
        if output.output_type == "error":
            return output.ename, f"{output.ename}: {output.evalue}".strip(": \n")
    numbers = [output for output in cell.get("outputs", []) if output.output_type == "execute_result"]
    said = "".join(output.text for output in cell.get("outputs", []) if output.output_type == "stream").strip()
    return known or ("partly" if numbers else ""), said
