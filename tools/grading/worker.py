"""One submission, in a process of its own, forked from one that has imported what grading needs.

A submission that kills its process, hangs or breaks nbgrader costs no other student anything: the process that asked
gets a sentence, or nothing, and goes on.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from dataclasses import asdict
from multiprocessing import connection, parent_process
from pathlib import Path

from tqdm import tqdm

from tools import ROOT
from tools.grade_one import GRADING
from tools.grading import feedback, gradebook
from tools.grading.judged import NOTES
from tools.grading.one import grade
from tools.grading.stop import hear_no_other
from tools.grading.submission import check
from tools.grading.task import SUBMITTED, Task
from tools.supervise import kill_tree


def work(task: Task, answer: connection.Connection) -> None:
    """Do it, and answer {"exercises": [...], "notes": [...], "problem": sentence or None}."""
    hear_no_other()  # a kernel inherits this, and is interrupted by a signal
    tqdm.set_lock(threading.RLock())  # its own is a semaphore, which stays behind when a worker ends
    threading.Thread(target=_end_with_parent, daemon=True).start()
    task.log.parent.mkdir(parents=True, exist_ok=True)
    log = os.open(task.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    for stream in (1, 2):
        os.dup2(log, stream)
    path = [str(task.root), str(ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(path))  # for the kernel
    os.chdir(task.root / GRADING)
    begun = time.monotonic()
    said = grade_one(task) if task.released else {"problem": feedback.write(*place(task), task.hidden)}
    answer.send(said | {"seconds": round(time.monotonic() - begun, 1)})


def _end_with_parent() -> None:
    """Nobody waits for the answer any more: the process that asked was killed."""
    if parent := parent_process():
        connection.wait([parent.sentinel])
        kill_tree(os.getpid())


def place(task: Task) -> tuple[Path, str, str]:
    return task.root, task.student, task.lab


def grade_one(task: Task) -> dict:
    """Look over, grade, and write feedback."""
    folder, (root, student, lab) = task.root / GRADING, place(task)
    for step in ("checked", "autograded", "feedback"):  # nothing of an earlier grading stays
        shutil.rmtree(folder / step / student / lab, ignore_errors=True)
    assert task.released is not None
    try:
        repairs = check(
            root / SUBMITTED / student / lab, task.released, folder / "checked" / student / lab / f"{lab}.ipynb"
        )
    except (ValueError, OSError) as error:
        return {"problem": str(error)}
    seen = gradebook.seen(root, student, lab)
    if problem := grade(root, lab, student, task.sandbox):
        return {"problem": problem, "notes": [*repairs, *NOTES]}
    repairs += NOTES
    try:
        if task.same:
            gradebook.still_seen(root, student, lab, seen)
        exercises = [asdict(each) for each in gradebook.exercises(root, student, lab)]
    except ValueError as error:
        return {"problem": str(error), "notes": repairs}
    return {"exercises": exercises, "notes": repairs, "problem": feedback.write(root, student, lab, task.hidden)}
