"""One submission, graded by nbgrader in a process of its own: ``python -m tools.grade_one ROOT LAB STUDENT``.

tools/grade.py starts this file, so that a submission which kills its process, hangs or breaks nbgrader costs no
other student anything. The last line on standard output is JSON: {"problem": sentence or null}; the log is on
standard error.
"""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

from nbgrader.apps import NbGraderAPI
from traitlets.config import Config
from traitlets.config.loader import PyFileConfigLoader

GRADING = Path("build") / "grading"


def settings(root: Path) -> Config:
    """The course's nbgrader_config.py, reading checked copies of submissions and leaving labs/ alone.

    Raises ValueError where the course has none, or a broken one.
    """
    here = str(Path(sys.executable).parent)  # nbgrader calls `alembic` by name, from an environment nobody activated
    if here not in os.environ.get("PATH", "").split(os.pathsep):
        os.environ["PATH"] = os.pathsep.join(filter(None, [here, os.environ.get("PATH")]))
    if not (root / "nbgrader_config.py").exists():
        raise ValueError(f"there is no nbgrader_config.py in {root}")
    try:
        config = PyFileConfigLoader("nbgrader_config.py", path=str(root)).load_config()
    except (Exception, SystemExit) as error:  # it is Python: anything may happen in it
        raise ValueError(f"{root / 'nbgrader_config.py'}: {type(error).__name__}: {error}") from None
    config.CourseDirectory.submitted_directory = str(GRADING / "checked")
    config.CourseDirectory.release_directory = str(GRADING / "release")
    return config


def grade(root: Path, lab: str, student: str) -> str | None:
    """Autograde and write feedback. Returns what went wrong in a sentence, or None."""
    from tools.grading import one  # which needs the settings

    if problem := one.grade(root, lab, student):
        return problem
    answer = NbGraderAPI(config=settings(root)).generate_feedback(lab, student, force=True)
    print(answer.get("log", ""), answer.get("error", ""), file=sys.stderr)
    return None if answer["success"] else f"graded, but without feedback: {last_error(answer.get('log', ''))}"


def last_error(log: str) -> str:
    """The last line of a traceback in an nbgrader log, or what there is."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"[\w.]+(Error|Exception)\b", line)]
    return (errors or lines or ["no reason given"])[-1][:200]


if __name__ == "__main__":
    print(json.dumps({"problem": grade(Path(sys.argv[1]), sys.argv[2], sys.argv[3])}))
