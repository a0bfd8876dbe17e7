"""Grade what lies in build/grading/submitted/STUDENT/LAB/: ``python -m tools.grade`` (``make grade``).

    submitted/   what students handed in; never changed
    checked/     the same, looked over and repaired (tools/grading/submission.py); this is what nbgrader reads
    autograded/  executed and graded; feedback/ is the page for the student, records/ what is finished
    scores.csv   a line a submission; points.csv a line an exercise; moodle.csv and changes.csv: tools/grading/tables.py

Only what has changed since it was graded is graded again, a few at a time, each in a process of its own
(tools/grading/batch.py). Ctrl-C leaves what is finished; the next run goes on. ``--export`` executes nothing: it brings
in what people gave in formgrader since, and writes the tables and the feedback again.

Each submission ends in a stated result: graded; waiting for a person (written answers); or failed, with the reason.
Exit code 0: all graded or waiting; 1: some failed; 2: nothing to grade, or not to be done; 130: stopped.

Students' code runs in a box (tools/grading/box.py), and its checks are judged outside. Without bubblewrap it has the
rights of whoever grades: grade strangers in a container.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from tools import ROOT
from tools.grading.stop import Stop, alone

LONGEST = 10_000  # minutes, a week


def parsed(argv: list[str] | None) -> argparse.Namespace:
    """The options. Raises ValueError, naming the option, for a value that is not allowed."""
    parser = argparse.ArgumentParser(prog="python -m tools.grade", description=__doc__.splitlines()[0])
    parser.add_argument("--lab", action="append", default=[], metavar="NAME", help="only this lab")
    parser.add_argument("--student", action="append", default=[], metavar="NAME", help="only this student")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1), help="how many at a time (default 2)")
    parser.add_argument("--minutes", type=float, default=30, help="the most that one submission may take (default 30)")
    parser.add_argument("--sandbox", default="auto", choices=("require", "auto", "off"), help="shut students' code in")
    parser.add_argument("--again", action="store_true", help="also what has not changed since it was graded")
    parser.add_argument("--export", action="store_true", help="execute nothing; bring in scores from formgrader")
    parser.add_argument("--with-hidden", action="store_true", help="hidden tests and mark schemes stay in the feedback")
    parser.add_argument("--root", type=Path, default=ROOT, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if not 0 < args.minutes <= LONGEST:
        raise ValueError(f"--minutes is {args.minutes:g}; it must be more than 0 and at most {LONGEST}")
    if not 1 <= args.jobs <= 64:
        raise ValueError(f"--jobs is {args.jobs}; it must be from 1 to 64")
    if not args.root.is_dir():
        raise ValueError(f"--root is {str(args.root)!r}; there is no such folder")
    if args.again and args.export:
        raise ValueError("--export executes nothing, and --again grades again: one of them")
    args.root = args.root.resolve()
    return args


def main(argv: list[str] | None = None) -> int:
    try:
        with Stop() as stop:
            args = parsed(argv)
            from tools.grade_one import GRADING
            from tools.grading import classroom, tables  # nbgrader takes seconds to import: Ctrl-C is watched by now

            with alone(args.root / GRADING):
                work = classroom.Classroom(args.root, stop)
                chosen = classroom.choose(classroom.submitted(args.root), args.lab, args.student)
                done = work.export(chosen, args) if args.export else work.grade(chosen, args)
    except (ValueError, OSError) as error:
        print(f"grade: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("grade: stopped", file=sys.stderr)
        return 130
    if stop.asked and work.left:
        print(f"grade: stopped; {work.left} left. What is finished is kept: the same command goes on.", file=sys.stderr)
        return 130
    print(tables.shown(done))
    if took := [grade.seconds for grade in work.graded if grade.seconds]:
        print(f"{len(took)} graded, in {min(took):.0f} to {max(took):.0f} seconds each, {args.jobs} at a time")
    if changed := tables.shown_changes(work.graded):
        print(f"Points that this changed, old -> new:\n{changed}")
    print(f"Scores, points, moodle.csv, changes.csv and feedback/ are in {GRADING}")
    failed = [f"{grade.student} {grade.lab}" for grade in done if grade.status == "failed"]
    if failed:
        print(f"grade: no grade for {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
