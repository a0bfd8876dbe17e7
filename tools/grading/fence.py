"""A fence for where there is no bubblewrap: ``python -I -S fence.py OPTIONS PROGRAM ...``, OPTIONS as JSON.

    read: [paths]      what may be read and executed, with all that lies below
    write: [paths]     what may be changed as well

Landlock, of Linux since 5.13, needs no rights: a process gives up its own, for itself and for all that it starts. What
is not named is then not there to be opened, made, removed or linked; no process outside can be looked into. Since Linux
6.7 there is no TCP either, and since 6.12 no signal reaches a process outside. Where the system has no Landlock the
program runs as it is.

Left out, for Landlock knows nothing of it: rights and times of files (chmod, utime), the names of files, UDP.
Imports nothing but what comes with Python.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from functools import cache

CREATE, ADD, RESTRICT = 444, 445, 446  # numbers of system calls, the same on all architectures
NO_NEW_PRIVILEGES, DROP = 38, 24  # of prctl
BENEATH = 1  # the rule of a path
READ = 0b1101  # execute, read a file, list a folder
FILE = 1 << 0 | 1 << 1 | 1 << 2 | 1 << 14 | 1 << 15  # what can be done to a file that is no folder
RIGHTS = {1: 13, 2: 14, 3: 15, 5: 16}  # version: how many rights of files it knows; each has those before it
TCP, SCOPES = {4: 0b11}, {6: 0b11}  # bind and connect; abstract sockets and signals


class Rules(ctypes.Structure):
    _fields_ = [("files", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64)]


class Below(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed", ctypes.c_uint64), ("folder", ctypes.c_int32)]


def version() -> int:
    """Of Landlock; 0 where there is none."""
    if sys.platform != "linux":
        return 0
    return max(0, ctypes.CDLL(None).syscall(CREATE, None, 0, 1))


@cache
def there() -> int:
    """``version()``, or 0 where Python does not start within a fence that should do."""
    from tools.grading.box import fenced

    try:
        done = subprocess.run([*fenced([], []), sys.executable, "-c", ""], capture_output=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return 0 if done.returncode else version()


def known(table: dict[int, int], now: int) -> int:
    return max((value for since, value in table.items() if since <= now), default=0)


def enclose(read: Sequence[str], write: Sequence[str]) -> None:
    """From now on nothing else is there for this process. Raises OSError where the system refuses."""
    libc, now = ctypes.CDLL(None, use_errno=True), version()

    def call(*what) -> int:
        if (said := libc.syscall(*what)) < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return said

    every = (1 << known(RIGHTS, now)) - 1
    rules = Rules(every, known(TCP, now), known(SCOPES, now))
    size = 24 if rules.scoped else 16 if rules.net else 8
    ruleset = call(CREATE, ctypes.byref(rules), size, 0)
    for paths, allowed in ((read, READ), (write, every)):
        for path in paths:
            try:
                folder = os.open(path, os.O_PATH | os.O_CLOEXEC)
            except OSError:  # is not there
                continue
            allowed_here = allowed if os.path.isdir(path) else allowed & FILE
            call(ADD, ruleset, BENEATH, ctypes.byref(Below(allowed_here, folder)), 0)
            os.close(folder)
    for capability in range(64):  # root's, some of which lead past all this
        libc.prctl(DROP, capability, 0, 0, 0)
    libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    call(RESTRICT, ruleset, 0)
    os.close(ruleset)


def main(options: dict, program: list[str]) -> None:
    if version():
        enclose(options["read"], options["write"])
    os.execvp(program[0], program)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), sys.argv[2:])
