"""The box: what a student's code runs in while it is graded, made with bubblewrap (``apt-get install bubblewrap``).

    with Box(held("auto"), [ROOT / "minigpt"], files) as box:
        subprocess.Popen(box.command([sys.executable, "-m", "ipykernel_launcher"]), env=box.env, cwd=box.cwd)

In it are Python with what is installed there, the packages, and a fresh copy of the files, in /box. All can only be
read but /box, /tmp and /student, its home, which are memory and end with it. There is no network and no other process,
and all that was started in it ends with it. Limits: LIMITS for a process, and for all of them together where the system
counts (``groups.py``).

Where there is no bubblewrap, or with ``off``, the same program runs beside whoever grades: limits for a process, copies
of the packages and the files, a home of its own, an environment without theirs, and a fence (``fence.py``) around that
where Linux has one. What is not held then is said by ``not_held``.

Left out: a limit on the processor's time of all processes together, and a GPU, which is not in the box.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from sysconfig import get_path

import psutil

from tools import ROOT
from tools.grading import fence
from tools.grading.groups import Group

CHOICES = ("require", "auto", "off")
GIB = 2**30
MEMORY, PROCESSES, DISK = 8 * GIB, 256, GIB  # of a process and of all; of all; of /box, of /tmp and of a file
LIMITS = {"AS": MEMORY, "FSIZE": DISK, "CPU": 3600, "CORE": 0}  # bytes, bytes, seconds, bytes
GET = "apt-get install bubblewrap"
OPEN = (
    "students' code is not shut in: it can read and write what you can, solutions and gradebook, too; it can reach the "
    "network, and leave processes behind"
)
FENCED = (
    "students' code is shut in by Landlock alone: it cannot open your files, but it can take their rights away, send "
    "{} over the network, and leave processes behind"
)
READ = ("/etc/ld.so.cache", "/etc/fonts")
SYSTEM = ("/usr", "/bin", "/lib", "/lib64", "/sbin", "/proc", "/sys", *READ)  # what a fence leaves to be read
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/shm")
START, FENCE = (Path(__file__).with_name(name) for name in ("start.py", "fence.py"))
MARK = "GRADED_IN"  # in the environment of all that an open box has started


@cache
def missing() -> str | None:
    """Why there can be no box here, or None."""
    if not (bwrap := shutil.which("bwrap")):
        return f"there is no bubblewrap here ({GET})" if sys.platform == "linux" else "bubblewrap is for Linux alone"
    bare = [bwrap, "--unshare-all", "--die-with-parent", "--cap-drop", "ALL", "--ro-bind", "/", "/", "--proc", "/proc"]
    try:
        done = subprocess.run([*bare, "--dev", "/dev", "true"], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"bubblewrap does not run here: {error}"
    said = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
    return f"bubblewrap may not shut anything in here: {said}" if done.returncode else None


def held(sandbox: str) -> bool:
    """Whether students' code is shut in, for one of CHOICES. Raises ValueError where it must be and cannot."""
    if sandbox not in CHOICES:
        raise ValueError(f"--sandbox is {sandbox!r}; allowed: {', '.join(CHOICES)}")
    if sandbox == "require" and missing():
        raise ValueError(f"--sandbox is 'require', and {missing()}")
    return sandbox != "off" and not missing()


def not_held(sandbox: str) -> str | None:
    """What is not held, in a sentence; None where students' code is shut in and counted."""
    if not held(sandbox):
        landlock = fence.there()
        what = FENCED.format("UDP" if landlock >= 4 else "what it likes") if landlock else OPEN
        return f"{missing() or '--sandbox is off'}: {what}"
    with contextlib.closing(Group(MEMORY, PROCESSES)) as group:
        if os.geteuid() == 0 and not group.counts:
            return "its processes are not counted: Linux does not count root's, and no control group can be made here"
    return None


class Box:
    """A box, ``held`` or open. ``packages``: folders of Python packages; ``files``: the folder that it starts with.

    ``hidden``: installed packages that a held box does not have; ``more``: for the environment in it.
    """

    def __init__(
        self, held: bool, packages: Sequence[Path], files: Path | None = None, hidden: Sequence[str] = (),
        more: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        self.held, self.files = held, files
        self.packages, self.hidden = [path.resolve() for path in packages], hidden
        self.more = dict(more or {})
        short = "/tmp" if os.path.isdir("/tmp") else None  # a socket's path has 107 characters at most
        self._made = tempfile.TemporaryDirectory(prefix="box-", dir=short, ignore_cleanup_errors=True)
        self.folder = Path(self._made.name)
        self.mark, self.group = uuid.uuid4().hex, Group(MEMORY, PROCESSES) if held else None
        for name in ("sockets", "box", "home", "tmp"):
            (self.folder / name).mkdir()
        self.fenced = not held and bool(fence.there())
        if not held:
            for path in self.packages:
                shutil.copytree(path, self.folder / "course" / path.name, ignore=shutil.ignore_patterns("__pycache__"))
            if files:
                shutil.copytree(files, self.folder / "box", dirs_exist_ok=True)

    @property
    def cwd(self) -> Path:
        return self.folder if self.held else self.folder / "box"

    @property
    def env(self) -> dict[str, str]:
        """For whoever starts the command; it can be read inside, so a held one has next to nothing in it."""
        return (
            {"PATH": "/usr/bin:/bin"}
            if self.held
            else self._inner(f"{self.folder}/home", f"{self.folder}/tmp", f"{self.folder}/course")
        )

    def command(self, program: Sequence[str]) -> list[str]:
        """What starts ``program`` in the box."""
        python = [sys.executable, "-I", "-S"]
        if not self.held:
            fences = fenced([f"{self.folder}/course"], self._own()) if self.fenced else []
            return [*python, str(START), json.dumps({"limits": LIMITS}), *fences, *program]
        given = {"copy": ["/given", "/box"]} if self.files else {}
        inner = {**given, "limits": {**LIMITS, "NPROC": PROCESSES}}
        assert self.group
        outer = [*python, str(START), json.dumps({"join": self.group.files})] if self.group.files else []
        return [*outer, *self._bwrap(), *python, "/start.py", json.dumps(inner), *program]

    def _own(self) -> list[str]:
        return [str(self.folder / name) for name in ("box", "home", "tmp", "sockets")]

    def _bwrap(self) -> list[str]:
        words: list[str] = [shutil.which("bwrap") or "bwrap", "--unshare-all", "--die-with-parent", "--cap-drop", "ALL"]
        words += ["--clearenv", "--proc", "/proc", "--dev", "/dev", "--ro-bind", "/usr", "/usr"]
        for name in ("bin", "lib", "lib64", "sbin"):
            path = Path("/", name)
            if path.is_symlink():
                words += ["--symlink", os.readlink(path), str(path)]
            elif path.is_dir():
                words += ["--ro-bind", str(path), str(path)]
        sockets, memory = self.folder / "sockets", ["--size", str(DISK), "--tmpfs"]
        mounts: dict[Path, list[str]] = {path: ["--ro-bind-try", str(path)] for path in map(Path, READ)}
        mounts |= {path.resolve(): memory for path in (ROOT, Path.home())}  # where they lie below /usr
        mounts |= {path: memory for path in map(Path, ("/box", "/tmp", "/student", "/dev/shm"))}
        mounts |= {path: ["--ro-bind", str(path)] for path in pythons()}
        mounts |= {Path("/course", path.name): ["--ro-bind", str(path)] for path in self.packages}
        mounts |= {path: memory for name in self.hidden for path in installed(name)}
        mounts |= {Path("/start.py"): ["--ro-bind", str(START)], sockets: ["--bind", str(sockets)]}
        mounts |= {Path("/given"): ["--ro-bind", str(self.files)]} if self.files else {}
        for path, how in sorted(mounts.items(), key=lambda each: len(each[0].parts)):  # what lies below comes after
            words += [*how, str(path)]
        words += ["--chdir", "/box"]
        words += ["--remount-ro", "/dev", "--remount-ro", "/"]
        for name, value in self._inner("/student", "/tmp", "/course").items():
            words += ["--setenv", name, value]
        return words

    def _inner(self, home: str, temporary: str, package: str) -> dict[str, str]:
        """The environment of a student's code."""
        binaries = [str(Path(sys.prefix) / "bin"), "/usr/local/bin", "/usr/bin", "/bin"]
        env = {
            "HOME": home, "TMPDIR": temporary, "MPLCONFIGDIR": home, "USER": "student",
            "LOGNAME": "student", "PATH": os.pathsep.join(binaries), "PYTHONPATH": package, "LANG": "C.UTF-8",
            "PYTHONDONTWRITEBYTECODE": "1", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1",
            "NBGRADER_EXECUTION": "autograde", **self.more,
        }  # fmt: skip
        if self.held:
            return env
        kept = {name: os.environ[name] for name in ("SYSTEMROOT", "LD_LIBRARY_PATH") if name in os.environ}
        return {**kept, **env, MARK: self.mark}

    def __enter__(self) -> Box:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        """End what is left of it, and remove its folder."""
        if self.group:
            self.group.close()
        if not self.held:
            for process in psutil.process_iter():
                with contextlib.suppress(psutil.Error, OSError):
                    if process.environ().get(MARK) == self.mark:
                        process.kill()
        self._made.cleanup()


def fenced(read: Sequence[str], write: Sequence[str]) -> list[str]:
    """What starts a program that has Python, the system's programs, and this; and nothing else of the disk."""
    python = [*map(str, pythons()), str(Path(sys.executable).parent)]
    options = {"read": [*SYSTEM, *python, *read], "write": [*DEVICES, *write]}
    return [sys.executable, "-I", "-S", str(FENCE), json.dumps(options)]


def pythons() -> list[Path]:
    """The folders that Python and its packages are in: the environment, and what its ``python`` leads to."""
    found, path = [Path(sys.prefix), Path(sys.base_prefix)], Path(sys.executable)
    while path.is_symlink():  # through other folders, with some installers
        path = path.parent / os.readlink(path)
        found.append(Path(os.path.abspath(path)).parents[1])
    return list(dict.fromkeys(each for each in found if len(each.parts) > 2))


def installed(name: str) -> list[Path]:
    """Where a package lies; a link in one of these folders leads to another of them, or out of the box to nothing."""
    below = Path(get_path("purelib")).relative_to(sys.prefix) / name
    there = [(each / below, each.resolve() / below) for each in dict.fromkeys([Path(sys.prefix), *pythons()])]
    return [path for path, real in there if path.is_dir() and path.resolve() == real]
