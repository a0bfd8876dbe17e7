"""What a submission must leave alone, looked at before and after it, and put back where it differs.

    with untouched(root, home, notes): ...    around what runs of a submission, before its points are written

In ``notes`` is then what had changed, a sentence each. It is as it was again.

    kept = Kept(places); kept.restore()       the same in steps; kept.take(places): as they are now, from now on

Of each file the content, its rights and, of a link, its target. Size, times and inode tell first whether a file may
have changed at all: no program can set the time of an inode's last change (ctime). Contents are kept in memory, where
another process does not find them by a name.

Processes that the submission left behind are ended first: on Linux whoever is orphaned becomes a child of this process,
so that one which forked twice and cleared its environment is found, too.

This is for ``--sandbox=off``, one submission at a time. In a box none of it can be reached.

Left out: what is too large to keep (``LARGEST``), which is said and not put back; other users' files; what a submission
does to this process, whose user it is.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import site
import stat
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

GRADING = Path("build") / "grading"
COURSE = (
    "nbgrader_config.py", "solutions", "labs", "content", "minigpt", "tools", "pyproject.toml", "Makefile",
    "sitecustomize.py", "usercustomize.py", "conftest.py", ".git/hooks", ".git/config",
)  # fmt: skip
GRADED = (
    "gradebook.db",
    "gradebook.db-journal",
    "submitted",
    "release",
    "records",
    "scores.csv",
    "points.csv",
    "feedback",
)
HOME = (
    ".ipython/profile_default/startup", ".ipython/profile_default/ipython_config.py", ".ipython/extensions",
    ".ipython/profile_default/ipython_kernel_config.py", ".jupyter", ".local/share/jupyter/kernels",
    ".local/share/jupyter/nbextensions", ".config/matplotlib", ".matplotlib", ".bashrc", ".bash_profile", ".profile",
    ".bash_login", ".bash_logout", ".zshrc", ".zprofile", ".zshenv", ".pythonrc.py", ".pythonstartup", ".gitconfig",
    ".config/git", ".config/autostart", ".config/systemd", ".config/pip", ".pip", ".ssh", ".netrc", ".local/lib",
)  # fmt: skip
LARGEST = 64 * 2**20  # bytes of a file that is kept
SKIP = {"__pycache__", ".ipynb_checkpoints"}


def watched(root: Path, home: Path) -> list[Path]:
    """Files and folders, there or not: of the course at ``root``, of a home, and what Python runs as it starts."""
    places = [root / name for name in COURSE] + [root / GRADING / name for name in GRADED]
    places += [home / name for name in HOME]
    for folder in dict.fromkeys([sysconfig.get_path("purelib"), *site.getsitepackages()]):
        places += [
            *sorted(Path(folder).glob("*.pth")),
            Path(folder, "sitecustomize.py"),
            Path(folder, "usercustomize.py"),
        ]
    return places


@contextlib.contextmanager
def untouched(root: Path, home: Path, notes: list[str]) -> Iterator[None]:
    """Around a submission's code: afterwards its processes are gone, and everything is as it was; ``notes`` say it."""
    kept, before = Kept(watched(root, home)), set(children())
    adopts = adopt(True)
    try:
        yield
    finally:
        end(spared=before)
        if adopts:
            adopt(False)
        notes += kept.restore()


def adopt(orphans: bool) -> bool:
    """Whether this process becomes the parent of its descendants' orphans (``PR_SET_CHILD_SUBREAPER``)."""
    if sys.platform != "linux":
        return False
    return not ctypes.CDLL(None, use_errno=True).prctl(36, int(orphans), 0, 0, 0)


def children() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


def end(spared: set[psutil.Process]) -> None:
    """Kill all children but these, and what they start meanwhile."""
    for _ in range(100):
        processes = [process for process in children() if process not in spared]
        if not processes:
            return
        for process in processes:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(processes, timeout=2)


@dataclass(frozen=True)
class Seen:
    """``quick``: what changes whenever anything does. ``content`` is None for a folder, or what is too large."""

    mode: int
    quick: tuple[int, ...]
    content: bytes | None = None

    def same(self, other: Seen | None) -> bool:
        return other is not None and (self.mode, self.content) == (other.mode, other.content)


class Kept:
    """What lies at these places, and below them."""

    def __init__(self, places: Iterable[Path]) -> None:
        self.places = [first_missing(Path(os.path.abspath(place))) for place in places]
        self.folders = {folder: rights(folder) for place in self.places for folder in place.parents}
        self.seen: dict[Path, Seen] = {}
        self.take(self.places)

    def take(self, places: Iterable[Path]) -> None:
        """From now on these places are to be as they are now; of others nothing is kept."""
        for place in map(Path, map(os.path.abspath, places)):
            for path in [path for path in self.seen if path == place or place in path.parents]:
                del self.seen[path]
            kept = [place] if any(each == place or each in place.parents for each in self.places) else []
            for each in kept or [each for each in self.places if place in each.parents]:
                self.seen |= {path: seen for path in below(each) if (seen := look(path))}

    def changed(self) -> list[Path]:
        """What is not as it was, those that come first first; a folder's own time is no change."""
        there = {path: look(path, self.seen.get(path)) for place in self.places for path in below(place)}
        return sorted(
            path
            for path in {*self.seen, *there}
            if not (known := self.seen.get(path)) or not known.same(there.get(path))
        )

    def restore(self) -> list[str]:
        """Put everything back. Returns a sentence for each place that had changed."""
        said = self._give_back()
        notes: dict[str, None] = {}
        while found := [path for path in self.changed() if str(path) not in notes]:
            for path in found:
                notes[str(path)] = None
                with contextlib.suppress(OSError):
                    self._put_back(path)
            if len(notes) > 10_000:
                break
        left = set(self.changed())
        self._give_back()  # of folders that were gone
        for path in map(Path, notes):
            if not any(parent in map(Path, notes) for parent in path.parents):  # a folder says it for what is in it
                said.append(f"{path} was changed, and {'could not be' if path in left else 'is'} put back")
        return said

    def _give_back(self) -> list[str]:
        """The rights of the folders that these places lie in."""
        taken = [folder for folder, mode in self.folders.items() if folder.is_dir() and rights(folder) != mode]
        for folder in sorted(taken):
            with contextlib.suppress(OSError):
                os.chmod(folder, self.folders[folder])
        return [f"{folder} was changed in its rights, and is put back" for folder in taken]

    def _put_back(self, path: Path) -> None:
        known, there = self.seen.get(path), look(path)
        opened(path.parent)
        if there and (known is None or stat.S_IFMT(known.mode) != stat.S_IFMT(there.mode)):
            remove(path)
        if known is None:
            return
        if stat.S_ISDIR(known.mode):
            path.mkdir(parents=True, exist_ok=True)
        elif stat.S_ISLNK(known.mode):
            path.unlink(missing_ok=True)
            os.symlink(os.fsdecode(known.content or b""), path)
            return
        elif known.content is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            if not (there and there.content == known.content):
                temporary = path.with_name(f"{path.name}.kept")  # a new inode: the old one may have other names
                temporary.write_bytes(known.content)
                os.replace(temporary, path)
        os.chmod(path, stat.S_IMODE(known.mode))
        if seen := look(path):
            self.seen[path] = seen if seen.same(known) else known


def rights(folder: Path) -> int:
    return stat.S_IMODE(os.stat(folder).st_mode)


def first_missing(place: Path) -> Path:
    """``place``, or the first folder on the way to it that is not there, and is not to be there afterwards either."""
    while not os.path.lexists(place.parent):
        place = place.parent
    return place


def below(place: Path) -> Iterator[Path]:
    """``place``, if it is there, and all that lies in it; links are not followed."""
    if not os.path.lexists(place):
        return
    yield place
    if place.is_dir() and not place.is_symlink():
        if not os.access(place, os.R_OK | os.X_OK):
            return
        for entry in sorted(os.scandir(place), key=lambda entry: entry.name):
            if entry.name not in SKIP:
                yield from below(Path(entry.path))


def look(path: Path, known: Seen | None = None) -> Seen | None:
    """What is there now; the content of ``known``, where nothing can have changed. None where there is nothing."""
    try:
        status = os.lstat(path)
        quick = (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev)
        if known and known.quick == quick and known.mode == status.st_mode:
            return known
        if stat.S_ISLNK(status.st_mode):
            return Seen(status.st_mode, quick, os.fsencode(os.readlink(path)))
        if not stat.S_ISREG(status.st_mode):  # a pipe would never end
            return Seen(status.st_mode, () if stat.S_ISDIR(status.st_mode) else quick)
        content = path.read_bytes() if status.st_size <= LARGEST else repr(quick).encode()
        return Seen(status.st_mode, quick, content)
    except FileNotFoundError:
        return None
    except OSError as error:
        return Seen(0, (), str(error).encode())


def opened(folder: Path) -> None:
    """Make it possible to write there: rights may have been taken from it."""
    for each in (*reversed(folder.parents), folder):
        with contextlib.suppress(OSError):
            if each.is_dir() and not os.access(each, os.R_OK | os.W_OK | os.X_OK):
                os.chmod(each, stat.S_IMODE(os.lstat(each).st_mode) | stat.S_IRWXU)


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        opened(path)
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
