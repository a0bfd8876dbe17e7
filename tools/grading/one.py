"""One submission, from its checked notebook to the autograded one, and its points in the gradebook.

    grade(root, lab, student, sandbox)     what went wrong in a sentence, or None

``python -m tools.grading.one ROOT LAB STUDENT [--sandbox=...]`` does the same: its last line on standard output is
JSON, {"problem": sentence or null, "notes": sentences}; the log, with the seconds of each step, is on standard error.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from nbconvert.preprocessors import ClearMetadataPreprocessor
from nbgrader import preprocessors as nb
from nbgrader.apps import NbGraderAPI

from tools.grade_one import last_error, settings
from tools.grading.box import CHOICES, held, not_held
from tools.grading.judged import NOTES, Judged

AFTER = [  # as nbgrader has them after Execute
    nb.IgnorePattern, ClearMetadataPreprocessor, nb.LimitOutput, nb.SaveAutoGrades, nb.AssignLatePenalties,
    nb.CheckCellMetadata,
]  # fmt: skip


def grade(root: Path, lab: str, student: str, sandbox: str = "auto", **seconds: int) -> str | None:
    """Autograde. ``seconds``: as Judged has them. Raises ValueError where code must be shut in and cannot."""
    held(sandbox)
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # there is no GPU in the box, and both sides are to find the same
    config = settings(root)
    config.Autograde.autograde_preprocessors = [Judged, *AFTER]
    config.Judged.sandbox, config.Judged.course = sandbox, str(root)
    for name, most in {"timeout": 120, **seconds}.items():  # not those of ExecutePreprocessor, which has no judge
        config.Judged[name] = most
    answer = NbGraderAPI(config=config).autograde(lab, student, force=True, create=True)
    print(answer.get("log", ""), answer.get("error", ""), file=sys.stderr)
    if answer["success"]:
        return None
    return f"nbgrader could not grade it: {last_error(answer.get('log', '') + str(answer.get('error', '')))}"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.grading.one", description=__doc__.splitlines()[0])
    parser.add_argument("root", type=Path)
    parser.add_argument("lab")
    parser.add_argument("student")
    parser.add_argument("--sandbox", default="auto", choices=CHOICES)
    args = parser.parse_args(argv)
    try:
        if open_to := not_held(args.sandbox):
            print(f"grade: {open_to}.", file=sys.stderr)
        problem = grade(args.root.resolve(), args.lab, args.student, args.sandbox)
    except ValueError as error:
        problem = str(error)
    print(json.dumps({"problem": problem, "notes": NOTES}))
    return 1 if problem else 0


if __name__ == "__main__":
    sys.exit(main())
