"""What all submissions of a class have in common, done once, in the process that they are forked from (``batch.py``).

Everything that grading needs is imported. Then each check of the labs in the environment's GRADED, which are paths of
notebooks with their answers, judges these answers: a truth that it makes for that is remembered
(``minigpt.checks.closing``), and no submission makes it again. What fails here fails again where it can be said.

Left out: checks of what a run has made.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
from pathlib import Path

import nbformat
import torch

import tools.grading.worker  # noqa: F401  with all that it imports
from tools.grading.batch import GRADED
from tools.grading.closed import exercise
from tools.grading.judge import prepared
from tools.grading.judged import judged


def judge_the_course(notebook: Path) -> None:
    """In this process, as in a student's notebook; silently, and with torch's random numbers left as they were."""
    cells = nbformat.read(notebook, as_version=4).cells
    nowhere = io.StringIO()
    with contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere), torch.random.fork_rng(devices=[]):
        space = prepared(cells)
        for cell in cells:
            if exercise(cell) or judged(cell):
                with contextlib.suppress(Exception, SystemExit):
                    exec(compile(cell.source, f"<{cell.id}>", "exec"), space if exercise(cell) else dict(space))


os.environ["CUDA_VISIBLE_DEVICES"] = ""
torch.set_num_threads(1)  # a pool of threads would not survive a fork
for path in json.loads(os.environ.get(GRADED, "[]")):
    with contextlib.suppress(Exception, SystemExit):  # of what cannot be imported the server would end
        judge_the_course(Path(path))
