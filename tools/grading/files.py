"""What lies in a submission's folder, its zip archives opened, as a list of files that are read when they are needed.

Nothing is unpacked onto the disk. Links are never followed and special files never opened; both are named in a note.

Left out: tar, rar and 7z. A folder that holds nothing else is told to send the notebook itself.
"""

from __future__ import annotations

import io
import os
import stat
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO

MOST_FILES = 1_000  # of one submission
MOST_BYTES = 32 << 20  # of one file; a larger one is never read
MOST_UNPACKED = 64 << 20  # of all that is in the archives of one submission, and of the archives themselves
DEEPEST = 3  # archives within archives
CHECKPOINTS = ".ipynb_checkpoints"  # where Jupyter keeps the notebook as it was saved before
LITTER = ("__MACOSX", "__pycache__", "node_modules", "venv", "env", "site-packages", "Thumbs.db", "desktop.ini")
BROKEN = (zipfile.BadZipFile, zlib.error, NotImplementedError, EOFError, RuntimeError, OSError, ValueError)


@dataclass(frozen=True)
class File:
    """One file of a submission: its path from the submission's folder, its bytes, and how to open it."""

    path: PurePosixPath
    size: int
    open: Callable[[], IO[bytes]]

    @property
    def name(self) -> str:
        """Its path, as it may stand in a sentence."""
        return said(str(self.path))

    def read(self) -> bytes:
        """All of it. Raises ValueError for more than MOST_BYTES, and where it cannot be read."""
        if self.size > MOST_BYTES:
            raise ValueError(
                f"{self.name} has {self.size / 1e6:,.0f} MB, more than the {MOST_BYTES >> 20} MiB that are read; clear "
                "the outputs of a notebook and save it, leave other large files out, and hand in again"
            )
        try:
            with self.open() as file:
                return file.read(MOST_BYTES)
        except BROKEN as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else "it is damaged"
            raise ValueError(f"{self.name} cannot be read ({reason}); hand it in again") from None


def said(text: object, most: int = 80) -> str:
    """A student's own words as they may stand in a sentence of scores.csv: one line, short, no formula of a sheet."""
    line = " ".join("".join(c if c.isprintable() else " " for c in str(text)[: 4 * most]).split())
    line = line if len(line) <= most else line[: most - 1] + "…"
    return f"'{line}'" if line.startswith(tuple("=+-@")) or not line else line


def gather(folder: Path) -> tuple[list[File], list[str]]:
    """The files below ``folder`` and in its archives, sorted by path; and what was passed over, a sentence each.

    Raises ValueError where there are too many files or too many bytes, or where the folder is closed.
    """
    notes: list[str] = []
    waiting = [(file, 0) for file in _walk(folder, notes)]
    files: list[File] = []
    spent = 0
    while waiting:
        file, depth = waiting.pop()
        if not _archive(file):
            files.append(file)
            if len(files) + len(waiting) > MOST_FILES:
                raise ValueError(
                    f"it has more than {MOST_FILES:,} files; hand in the notebook and the few files that it needs"
                )
            continue
        if depth == DEEPEST:
            raise ValueError(f"{file.name} is an archive in an archive, {depth} deep; hand in the notebook itself")
        inside = _unpacked(file, notes)
        spent += file.size + sum(other.size for other in inside)
        if spent > MOST_UNPACKED or len(inside) > MOST_FILES:
            raise ValueError(
                f"{file.name} unpacks to more than {MOST_UNPACKED >> 20} MiB or {MOST_FILES:,} files; "
                "hand in the notebook and the few files that it needs"
            )
        waiting += [(other, depth + 1) for other in inside]
    return sorted(files, key=lambda file: file.path), notes


def _walk(folder: Path, notes: list[str]) -> list[File]:
    files: list[File] = []
    if folder.is_symlink():
        raise ValueError("its folder is a link; put the files themselves there")
    for where, folders, names in os.walk(folder, onerror=_refuse):
        links = [name for name in folders if Path(where, name).is_symlink()]
        folders[:] = sorted(name for name in folders if not _litter(name) and name not in links)
        for name in sorted(names + links):
            path = Path(where, name)
            inside = PurePosixPath(path.relative_to(folder).as_posix())
            if _litter(name):
                continue
            try:
                kind = path.lstat()
            except OSError as error:
                raise _closed(error) from None
            if stat.S_ISLNK(kind.st_mode):
                notes.append(f"{said(inside)} is a link and was not used; hand in the file itself")
            elif not stat.S_ISREG(kind.st_mode):
                notes.append(f"{said(inside)} is no ordinary file and was not used")
            else:
                files.append(File(inside, kind.st_size, partial(_open, path)))
            if len(files) + len(notes) > MOST_FILES:
                raise ValueError(
                    f"it has more than {MOST_FILES:,} files; hand in the notebook and the few files that it needs"
                )
    return files


def _closed(error: OSError) -> ValueError:
    return ValueError(f"its folder cannot be read ({error.strerror}); give whoever grades the right to read it")


def _refuse(error: OSError) -> None:
    raise _closed(error) from None


def _open(path: Path) -> IO[bytes]:
    flags = sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"))  # not all are everywhere
    return open(os.open(path, os.O_RDONLY | flags), "rb")


def _litter(name: str) -> bool:
    return name in LITTER or (name.startswith(".") and name != CHECKPOINTS)


def _archive(file: File) -> bool:
    """A zip by its name, or a zip that somebody called a notebook."""
    if file.path.suffix.lower() == ".zip":
        return True
    return file.path.suffix.lower() == ".ipynb" and file.size <= MOST_BYTES and file.read().startswith(b"PK\x03\x04")


def _unpacked(archive: File, notes: list[str]) -> list[File]:
    """The files in a zip, as if they lay where it lies. Entries that lead elsewhere are left out with a note."""
    try:
        opened = zipfile.ZipFile(io.BytesIO(archive.read()))
    except BROKEN as error:
        if str(error).startswith(archive.name):
            raise
        raise ValueError(f"{archive.name} is a broken zip; make it again, or hand in the notebook itself") from None
    files: dict[PurePosixPath, File] = {}
    for entry in opened.infolist():
        parts = entry.filename.replace("\\", "/").split("/")
        if entry.is_dir() or not parts[-1] or any(_litter(part) for part in parts if part != ".."):
            continue
        inside = f"{said(entry.filename)} in {archive.name}"
        if ".." in parts or parts[0] == "" or ":" in parts[0]:
            notes.append(f"{inside} leads out of the archive and was not used")
        elif stat.S_ISLNK(entry.external_attr >> 16):
            notes.append(f"{inside} is a link and was not used; hand in the file itself")
        elif entry.flag_bits & 1:
            raise ValueError(f"{archive.name} asks for a password; make it again without one")
        else:
            path = archive.path.parent.joinpath(*[part for part in parts if part != "."])
            files[path] = File(path, entry.file_size, partial(opened.open, entry))
        if len(notes) > MOST_FILES:
            raise ValueError(f"{archive.name} holds too many entries that cannot be used; hand in the notebook itself")
    return list(files.values())
