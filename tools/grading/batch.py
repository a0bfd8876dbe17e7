"""Many submissions, a few at a time, each in a process with an end: by itself, by the clock, or with everything else.

The processes are forked from one server that has done what they have in common (multiprocessing's forkserver, and
``preload``).
One thread starts them, waits and stops them, so that there is one place that knows what runs.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing import connection, forkserver, get_context, resource_tracker
from multiprocessing.process import BaseProcess
from pathlib import Path

from tools.grading.stop import deaf
from tools.grading.task import Task, work
from tools.supervise import kill_tree

LOOK = 0.25  # seconds between two looks at the clock, and at whether to stop
PRELOADED, GRADED = ["tools.grading.preload"], "GRADED"  # the second is in its environment


@dataclass(eq=False)
class Running:
    """A process at work on a task. ``until`` is on the monotonic clock, in seconds."""

    task: Task
    process: BaseProcess
    answer: connection.Connection
    until: float
    said: dict = field(default_factory=dict)

    def finished(self, minutes: float) -> bool:
        """Whether it has come to its end, which is then in ``said``."""
        if self.answer.poll():
            try:
                self.said = self.answer.recv()
            except (EOFError, OSError):
                self.process.join(5)
                code = self.process.exitcode or 0
                how = f"by signal {-code}: killed, or out of memory" if code < 0 else f"with code {code}"
                self.said = {"problem": f"the process that graded it ended {how}", "died": True}
        elif time.monotonic() > self.until:
            self.said = {"problem": f"stopped after {minutes:g} minutes", "limit": minutes}
        return bool(self.said)

    def end(self) -> None:
        """Also what it started ends."""
        if self.process.pid:
            kill_tree(self.process.pid)
        self.process.join(5)
        self.answer.close()


def run(
    tasks: list[Task], jobs: int, minutes: float, stopping: Callable[[], bool] = lambda: False, work: Callable = work
) -> Iterator[tuple[Task, dict]]:
    """Each task and what ``work`` answered, as they finish; at most ``jobs`` run at a time, each for so many minutes.

    Ends early where ``stopping()`` is true. What still runs then is ended and not told of.
    """
    left = list(reversed(tasks))
    running: list[Running] = []
    try:
        while (left or running) and not stopping():
            while left and len(running) < jobs and not stopping():
                running.append(_start(left.pop(), minutes, work))
            connection.wait([each.answer for each in running], LOOK)
            for each in [each for each in running if each.finished(minutes)]:
                each.end()
                running.remove(each)
                yield each.task, each.said
    finally:
        for each in running:
            each.end()


def _start(task: Task, minutes: float, work: Callable) -> Running:
    context = get_context("forkserver")
    for _ in range(2):
        serve()
        mine, theirs = context.Pipe(duplex=False)
        process = context.Process(target=work, args=(task, theirs))
        try:
            process.start()
        except (EOFError, ConnectionError):  # somebody ended the server; the next try starts a new one
            continue
        theirs.close()  # so that its end is seen here as the end of the file
        return Running(task, process, mine, time.monotonic() + 60 * minutes)
    raise OSError("no process can be started: the one that they are forked from ends at once")


def serve(labs: Sequence[Path] = ()) -> None:
    """Start the server, if it does not run, deaf to Ctrl-C from its first moment on. Its imports take it seconds.

    ``labs``: notebooks with their answers, whose truths it makes for all (``preload``).
    """
    forkserver.set_forkserver_preload(PRELOADED)
    os.environ[GRADED] = json.dumps([str(path) for path in labs])
    resource_tracker.ensure_running()  # the server starts it, and it would end the deafness
    with deaf():
        forkserver.ensure_running()
    del os.environ[GRADED]
