"""Many submissions, a few at a time, each in a process with an end: by itself, by the clock, or with everything else.

The processes are forked from one server that has imported what grading needs, once (multiprocessing's forkserver).
One thread starts them, waits and stops them, so that there is one place that knows what runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing import connection, get_context

from tools.grading.worker import Task, work
from tools.supervise import kill_tree

LOOK = 0.25  # seconds between two looks at the clock, and at whether to stop
PRELOADED = ["tools.grading.worker"]  # with all that it imports
LIMIT = "stopped after {:g} minutes"


@dataclass
class Running:
    """A process at work on a task. ``until`` is on the monotonic clock, in seconds."""

    task: Task
    process: object
    answer: connection.Connection
    until: float
    minutes: float
    said: dict = field(default_factory=dict)

    def finished(self) -> bool:
        """Whether it has come to its end, which is then in ``said``."""
        if self.answer.poll():
            try:
                self.said = self.answer.recv()
            except (EOFError, OSError):
                code = self.process.join(5) or self.process.exitcode  # type: ignore[attr-defined]
                how = (
                    f"with code {code}"
                    if code is None or code >= 0
                    else f"by signal {-code} (killed, or out of memory)"
                )
                self.said = {"problem": f"the process that graded it ended {how}", "died": True}
        elif time.monotonic() > self.until:
            self.said = {"problem": LIMIT.format(self.minutes), "limit": self.minutes}
        return bool(self.said)

    def end(self) -> None:
        """Also what it started ends."""
        if self.process.pid:  # type: ignore[attr-defined]
            kill_tree(self.process.pid)  # type: ignore[attr-defined]
        self.process.join(5)  # type: ignore[attr-defined]
        self.answer.close()


def run(
    tasks: list[Task], jobs: int, minutes: float, stopping: Callable[[], bool] = lambda: False
) -> Iterator[tuple[Task, dict]]:
    """Each task and what became of it, as they finish; at most ``jobs`` run at a time, each for so many minutes.

    Ends early where ``stopping()`` is true. What still runs then is ended and not told of.
    """
    context = get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    left = list(reversed(tasks))
    running: list[Running] = []
    try:
        while (left or running) and not stopping():
            while left and len(running) < jobs:
                running.append(_start(context, left.pop(), minutes))
            connection.wait([each.answer for each in running], LOOK)
            for each in [each for each in running if each.finished()]:
                each.end()
                running.remove(each)
                yield each.task, each.said
    finally:
        for each in running:
            each.end()


def _start(context, task: Task, minutes: float) -> Running:
    mine, theirs = context.Pipe(duplex=False)
    process = context.Process(target=work, args=(task, theirs), daemon=False)
    process.start()
    theirs.close()  # so that its end is seen here as the end of the file
    return Running(task, process, mine, time.monotonic() + 60 * minutes, minutes)
