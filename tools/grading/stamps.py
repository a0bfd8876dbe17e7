"""Has anything changed since a submission was graded? Its files, its lab with the hidden tests, the course, a library.

Left out: the machine, and the limit of time. ``--again`` grades again what has not changed.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from tools import ROOT

LIBRARIES = ("torch", "transformers", "peft", "bitsandbytes", "nbgrader", "ipykernel")
GRADERS = ("tools/grading", "tools/grade_one.py")
SKIPPED = {"__pycache__", ".ipynb_checkpoints"}


def of_files(paths: Iterable[Path], start: Path) -> str:
    """A checksum of the names, below ``start``, and contents of files; of folders, all that is in them."""
    checksum = hashlib.sha256()
    found = {file for path in paths for file in ([path] if path.is_file() else path.rglob("*"))}
    for path in sorted(found):
        if path.is_file() and not path.is_symlink() and not SKIPPED & {*path.parts}:
            with open(path, "rb") as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
            checksum.update(f"{path.relative_to(start).as_posix()}\0{content}\n".encode("utf8", "surrogateescape"))
    return checksum.hexdigest()


def of_course(root: Path, lab: str) -> str:
    """Of what grades a lab: its source, the package, the grader, the settings, and the libraries' versions."""
    course = of_files([root / "solutions" / lab, root / "nbgrader_config.py"], root)
    grader = of_files([ROOT / "minigpt", *(ROOT / name for name in GRADERS)], ROOT)
    return _of([course, grader, platform.python_version(), *map(_version, LIBRARIES)])


def of_submission(files: str, course: str) -> str:
    return _of([files, course])


def _of(parts: list[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _version(name: str) -> str:
    try:
        return f"{name} {version(name)}"
    except PackageNotFoundError:
        return f"no {name}"
