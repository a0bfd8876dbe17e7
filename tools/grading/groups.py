"""A control group of Linux for one box: how much memory and how many processes all that is in it may have.

Limits of single processes (``start.py``) do not add up: twenty processes have twenty times the memory, and Linux does
not count root's processes at all. Only root may make groups; for others the kernel counts the processes of a box.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
FIRST = (("memory", "memory.limit_in_bytes"), ("pids", "pids.max"))  # version 1: a tree for each


class Group:
    """``files``: a process whose number is written into them is in the group. None, where none can be made."""

    def __init__(self, memory: int, processes: int, root: Path = ROOT) -> None:
        self.folders: list[Path] = []
        self.files: list[str] = []
        limits = {"memory": memory, "pids": processes}
        if (root / "cgroup.controllers").exists():
            self._make(root, {"memory.max": memory, "memory.swap.max": 0, "pids.max": processes})
        else:
            for kind, file in FIRST:
                self._make(root / kind, {file: limits[kind]})

    def _make(self, parent: Path, limits: dict[str, int]) -> None:
        if os.name != "posix" or os.geteuid():
            return
        folder = parent / f"box-{uuid.uuid4().hex}"
        try:
            folder.mkdir(mode=0o700)
        except OSError:
            return
        self.folders.append(folder)
        with contextlib.suppress(OSError):
            for file, most in limits.items():
                if file != "memory.swap.max" or (folder / file).exists():
                    (folder / file).write_text(str(most))
            self.files.append(str(folder / "cgroup.procs"))

    @property
    def counts(self) -> bool:
        """Whether processes are counted."""
        return any(Path(file).with_name("pids.max").exists() for file in self.files)

    def close(self) -> None:
        """Ends whoever is still in it, and removes it."""
        for folder in self.folders:
            for _ in range(50):
                with contextlib.suppress(OSError, ValueError):
                    for process in (folder / "cgroup.procs").read_text().split():
                        os.kill(int(process), 9)
                try:
                    folder.rmdir()
                    break
                except FileNotFoundError:
                    break
                except OSError:  # they have not quite ended
                    time.sleep(0.02)
        self.folders, self.files = [], []
