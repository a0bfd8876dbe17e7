"""Work for the batch that is not grading. Nothing else is imported here: each of its processes has to import it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time


def play(task, answer) -> None:
    """What a task's name says: "sleep", "die", "hang" with a child that hangs, or "raise"."""
    os.setsid()
    what = task.lab
    if what == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "raise":
        os.close(2)
        raise RuntimeError
    if what == "hang":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
        (task.root / "child").write_text(str(child.pid))
        time.sleep(600)
    start = time.monotonic()
    time.sleep(1)
    answer.send({"problem": None, "from": start, "to": time.monotonic()})
