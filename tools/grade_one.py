"""The course's settings for nbgrader, and what its log says; tools/grading/ grades with them."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from traitlets.config import Config
from traitlets.config.loader import PyFileConfigLoader

GRADING = Path("build") / "grading"
PATIENCE = 60  # seconds to wait until another process has written


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
    # Several processes write to the gradebook; by itself SQLite gives up after 5 seconds.
    config.CourseDirectory.db_url += f"?timeout={PATIENCE}"
    return config


def last_error(log: str) -> str:
    """The last line of a traceback in an nbgrader log, or what there is."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"[\w.]+(Error|Exception)\b", line)]
    return (errors or lines or ["no reason given"])[-1][:200]
