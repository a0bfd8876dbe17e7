"""What Windows lacks is asked for with care: here it is taken away, and the package and the tools go on.

Windows itself has not been tried; README says so.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys

import pytest

from tools import ROOT, doctor, execute, place

# Of os, what POSIX alone has, as Python's manual marks it, where any file of ours uses it; and modules of POSIX alone.
LACKS = ("O_CLOEXEC", "fork", "geteuid", "killpg", "sched_getaffinity", "setsid", "sysconf")
MODULES = ("fcntl", "grp", "posix", "pty", "pwd", "resource", "termios")
POSIX = re.compile(
    r"chown|chroot|ctermid|fork\w*|get(e?[ug]id|groups|pgid|pgrp|priority|res[ug]id|sid)|initgroups|killpg|lchown|major|minor"
    r"|mkfifo|mknod|nice|openpty|pathconf|posix_\w+|pread\w*|pwrite\w*|sched_\w+|set(e?[ug]id|groups|pgid|sid)|sysconf|times"
    r"|tcgetpgrp|tcsetpgrp|uname|wait(id|[34])?|WIF\w+|WEX\w+|O_(NOFOLLOW|CLOEXEC|NONBLOCK)"
)
GONE = f"""
import os, sys
import psutil  # Windows has one of its own
for name in {LACKS}:
    if hasattr(os, name):
        delattr(os, name)
sys.modules["resource"] = sys.modules["fcntl"] = None
"""


def gone(code: str) -> subprocess.CompletedProcess:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, "-c", GONE + code], cwd=ROOT, env=env, capture_output=True, text=True)


def files() -> list:
    return sorted([*(ROOT / "minigpt").rglob("*.py"), *(ROOT / "tools").rglob("*.py")])


def test_what_is_used_of_posix_alone_is_what_these_tests_take_away():
    used, modules = set(), set()
    for path in files():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os":
                used |= {node.attr} if POSIX.fullmatch(node.attr) else set()
            elif isinstance(node, (ast.Import, ast.ImportFrom)):
                names = (
                    [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
                )
                modules |= {name for name in names if name in MODULES}
    assert used == set(LACKS) and modules == {"fcntl", "resource"}


@pytest.mark.slow
def test_every_module_is_imported_without_it():
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in files()]
    names = [name.removesuffix(".__init__") for name in names if not re.search(r"__main__|tools\.lab|unsloth", name)]
    ran = gone(f"from importlib import import_module\nfor name in {names}: import_module(name)")
    assert ran.returncode == 0, ran.stderr


@pytest.mark.slow
def test_a_step_is_measured_apart_and_a_child_that_is_late_is_ended():
    ran = gone(
        "from minigpt.memory.measured.apart import Call, run_apart\n"
        "print(run_apart({'x': Call('os:getpid')})['x'] > 0)\n"
        "try: run_apart({'x': Call('tests.test_litter:wait')}, timeout=4)\n"
        "except TimeoutError as error: print(error)"
    )
    assert ran.stdout.splitlines()[:1] == ["True"] and "x was stopped after 4 seconds" in ran.stdout, ran.stderr


def test_the_doctor_says_what_it_cannot_know(monkeypatch):
    monkeypatch.delattr(os, "sysconf")
    [_, (level, said)] = doctor.machine()
    assert level == doctor.WARN and said.startswith("RAM: unknown to Python here, on ") and "8 GB are needed" in said


def test_a_kernel_s_end_is_told_without_its_memory(monkeypatch):
    monkeypatch.setitem(sys.modules, "resource", None)
    monkeypatch.delattr("signal.SIGKILL")
    assert execute.largest_child() == 0
    assert execute.why_dead(1) == "the kernel ended itself with exit code 1"


def test_nobody_is_root_where_there_is_none(monkeypatch):
    monkeypatch.delattr(os, "geteuid")
    assert place.is_root() is False
