"""Stopping at a safe place, and being the only one: what a batch needs around it."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path


class Stop:
    """Inside ``with``, Ctrl-C and a request to end only set ``asked``; the second Ctrl-C raises KeyboardInterrupt.

    So no file and no process is left half made, wherever the signal comes. Call it to ask.
    """

    def __init__(self) -> None:
        self.asked, self.before = False, {}  # type: bool, dict

    def __call__(self) -> bool:
        return self.asked

    def __enter__(self) -> Stop:
        if threading.current_thread() is threading.main_thread():
            self.before = {which: signal.signal(which, self._ask) for which in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_) -> None:
        for which, handler in self.before.items():
            signal.signal(which, handler)

    def _ask(self, *_) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True


@contextlib.contextmanager
def deaf() -> Iterator[None]:
    """A process that is started in here never hears Ctrl-C; this one hears it afterwards."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def hear_no_other() -> None:
    """This process leaves the terminal's Ctrl-C to who asked, also if it came a moment ago. It hears its own."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # forgets one that waits
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Only one batch at a time in a folder. Raises ValueError for the second one."""
    import fcntl  # Windows has none

    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"another grading is at work in {folder}; wait for it, or stop it") from None
        yield
