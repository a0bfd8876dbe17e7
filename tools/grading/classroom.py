"""A class: who handed in what, what of it is to be graded, and what has been."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tqdm import tqdm

from tools.grade_one import GRADING, settings
from tools.grading import batch, edition, gradebook, stamps, tables
from tools.grading.box import held, not_held
from tools.grading.grades import Exercise, Grade, load, save
from tools.grading.task import SUBMITTED, Task
from tools.grading.untouched import Kept, watched

Pair = tuple[str, str]  # (student, lab)
MANY = 3  # submissions of a lab, for which its truths are made once


def submitted(root: Path) -> list[Pair]:
    """All pairs in the folder of submissions."""
    found = sorted((path.parent.name, path.name) for path in (root / SUBMITTED).glob("*/*") if path.is_dir())
    return [pair for pair in found if not any(name.startswith(".") for name in pair)]


def choose(found: list[Pair], labs: list[str], students: list[str]) -> list[Pair]:
    """The pairs that --lab and --student ask for; all, where they ask for nothing. Raises ValueError for none."""
    if not found:
        raise ValueError(f"nothing is submitted; put notebooks into {SUBMITTED}/STUDENT/LAB/LAB.ipynb")
    for option, names, i in (("--student", students, 0), ("--lab", labs, 1)):
        there = sorted({pair[i] for pair in found})
        for name in names:
            if not any(_is(name, other) for other in there):
                raise ValueError(f"{option} is {name!r}; {SUBMITTED} has {', '.join(there)}")
        found = [pair for pair in found if not names or any(_is(name, pair[i]) for name in names)]
    if not found:
        raise ValueError("no student in --student has submitted a lab in --lab")
    return found


def _is(name: str, whole: str) -> bool:
    return name in (whole, whole.split("-")[0])


class Classroom:
    """All records of a course, and what is done to them. ``graded`` is what this run has graded."""

    def __init__(self, root: Path, stopping: Callable[[], bool] = lambda: False) -> None:
        settings(root)  # a broken course is said once, not for each submission
        self.root, self.stopping = root, stopping
        gradebook.begin(root)
        loaded = {pair: load(root, *pair) for pair in submitted(root)}
        self.grades: dict[Pair, Grade] = {pair: grade for pair, grade in loaded.items() if grade}
        self.graded: list[Grade] = []
        self.left = 0

    def grade(self, pairs: list[Pair], args: argparse.Namespace) -> list[Grade]:
        """Grade those that have changed, or all with ``args.again``; write the tables; return the grades of all."""
        course = {lab: stamps.of_course(self.root, lab) for _, lab in pairs}
        new: dict[Pair, Grade] = {}
        for pair in pairs:
            folder = self.root / SUBMITTED / pair[0] / pair[1]
            files = stamps.of_files([folder], folder)
            new[pair] = Grade(*pair, files=files, stamp=stamps.of_submission(files, course[pair[1]]))
        due = [pair for pair in pairs if args.again or not self._finished(new[pair], args.minutes)]
        if due and (open_to := not_held(args.sandbox)):
            print(f"grade: {open_to}.", file=sys.stderr)
        if len(due) < len(pairs):
            print(f"{len(pairs) - len(due)} of {len(pairs)} have not changed since they were graded (--again: all)")
        for pair in due:  # an earlier record stays until the new one is there, but is not finished any more
            if old := self.grades.get(pair):
                save(self.root, replace(old, stamp=""))
        self.left = len(due)
        labs = Counter(lab for _, lab in due)
        if due:  # it has seconds to do, meanwhile
            many = [lab for lab in labs if labs[lab] >= MANY]
            batch.serve([self.root / "solutions" / lab / f"{lab}.ipynb" for lab in many])
        released = self._release(sorted(labs))
        tasks = []
        for pair in due:
            where, old = released.get(pair[1]), self.grades.get(pair)
            if where is None:  # stopped
                continue
            if isinstance(where, Path):
                same = old is not None and old.files == new[pair].files
                tasks.append(Task(self.root, *pair, where, args.with_hidden, same, args.sandbox))
            else:
                self._keep(replace(new[pair], notes=[str(where)], stamp=""))
        gradebook.enter(self.root, {task.student for task in tasks})
        for task, said in self._run(tasks, args):
            grade = new[task.student, task.lab]
            problem = said.get("problem")
            grade.exercises = [Exercise(**each) for each in said.get("exercises", [])]
            grade.notes = [*([problem] if problem else []), *said.get("notes", [])]
            grade.limit, grade.seconds = said.get("limit"), said.get("seconds")
            self._keep(replace(grade, stamp="") if said.get("died") else grade)
        self._write()
        return [self.grades[pair] for pair in pairs if pair in self.grades]

    def export(self, pairs: list[Pair], args: argparse.Namespace) -> list[Grade]:
        """Bring in what people gave, and write tables and feedback. Raises ValueError where nothing is graded."""
        there = [pair for pair in pairs if pair in self.grades]
        if not there:
            raise ValueError("nothing of it has been graded: start without --export")
        tasks = [Task(self.root, *pair, hidden=args.with_hidden) for pair in there if self.grades[pair].exercises]
        for task, said in self._run(tasks, args):
            grade = self.grades[task.student, task.lab]
            grade.notes = [note for note in grade.notes if not note.startswith("graded, but without feedback")]
            grade.notes = [*([said["problem"]] if said.get("problem") else []), *grade.notes]
            save(self.root, grade)
        self._write()
        return [self.grades[pair] for pair in there]

    def _run(self, tasks: list[Task], args: argparse.Namespace):
        """batch.run, with what is left on the screen, where there is one."""
        self.left = max(self.left, len(tasks))
        with tqdm(total=len(tasks), unit="submission", dynamic_ncols=True, disable=None) as bar:
            kept = None if held(args.sandbox) else Kept(watched(self.root, Path.home()))
            for task, said in batch.run(tasks, args.jobs if kept is None else 1, args.minutes, self.stopping):
                if kept and (said.get("died") or said.get("limit")):  # nobody has put it back
                    said["notes"] = [*said.get("notes", []), *kept.restore()]
                yield task, said
                if kept:
                    kept.take([self.root / GRADING])
                self.left -= 1
                bar.update()

    def _finished(self, new: Grade, minutes: float) -> bool:
        """Whether the record is of the same files and course; one that was stopped may have more time now."""
        old = self.grades.get((new.student, new.lab))
        return old is not None and old.stamp == new.stamp and (old.limit is None or minutes <= old.limit)

    def _release(self, labs: list[str]) -> dict[str, Path | ValueError]:
        made: dict[str, Path | ValueError] = {}
        for lab in labs:
            if self.stopping():
                break
            try:
                made[lab] = gradebook.release(self.root, lab)
                edition.cached(self.root, lab)  # once, and not in each process that needs it
            except ValueError as error:
                made[lab] = error
        return made

    def _keep(self, grade: Grade) -> None:
        """One more is finished: its record, then the tables, so that a stop at any moment finds both whole."""
        old = self.grades.get((grade.student, grade.lab))
        if old and old.exercises:
            grade.after(old)
        save(self.root, grade)
        self.grades[grade.student, grade.lab] = grade
        self.graded.append(grade)
        tables.write(self.root, [*self.grades.values()])

    def _write(self) -> None:
        for grade in gradebook.by_hand(self.root, [*self.grades.values()]):
            save(self.root, grade)
        tables.write(self.root, [*self.grades.values()])
