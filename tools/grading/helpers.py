"""Files that a student handed in beside the notebook: copied to where its kernel will run, within limits."""

from __future__ import annotations

import importlib.util
import re
from fnmatch import fnmatch
from importlib.machinery import all_suffixes
from pathlib import Path, PurePosixPath

from tools.grading.files import File, said

MOST_HELPERS = 50
MOST_NAMED = 8  # files left out that have a sentence each
MOST_BYTES = 10 << 20  # of all of them together
NAME = re.compile(r"\w[\w .()+,-]{0,99}")
NOT_GRADED = ("__pycache__", "*.pyc", "*.safetensors", "build", "*.bank.py")  # nbgrader_config.py keeps them out
COMPILED = ("*.so", "*.pyd", "*.dll", "*.dylib", "*.pth", "*.egg-link")
SETTINGS = ("sitecustomize.*", "usercustomize.*", "ipython*_config.*", "jupyter_*config.*", "nbgrader_config.*")


def carry(files: list[File], beside: PurePosixPath, folder: Path) -> list[str]:
    """Copy ``files`` into ``folder``, at the paths that they have from the notebook's folder ``beside``.

    Returns a sentence on each that was left out. Nothing that ``folder`` holds already is replaced.
    """
    notes: list[str] = []
    carried: list[str] = []
    spent = 0
    for file in files:
        try:
            inside = _path(file, beside)
            if len(carried) == MOST_HELPERS:
                raise ValueError(f"there are more than {MOST_HELPERS} files beside the notebook")
            if spent + file.size > MOST_BYTES:
                raise ValueError(f"the files beside the notebook may have {MOST_BYTES >> 20} MiB together")
            data = file.read()
            target = folder.joinpath(inside)
            target.parent.mkdir(parents=True, exist_ok=True)
            with open(target, "xb") as copied:
                copied.write(data)
        except (ValueError, OSError) as error:
            reason = str(error)
            if isinstance(error, OSError):
                taken = isinstance(error, FileExistsError)
                reason = "another file has its place" if taken else f"it cannot be written here ({error.strerror})"
            notes.append(f"{file.name} was not used: {reason}")
            continue
        spent += file.size
        carried.append(file.name)
    if len(notes) > MOST_NAMED:
        notes[MOST_NAMED:] = [f"{len(notes) - MOST_NAMED} more files were not used"]
    return notes + ([f"taken along: {', '.join(carried[:8])}" + " …" * (len(carried) > 8)] if carried else [])


def _path(file: File, beside: PurePosixPath) -> PurePosixPath:
    """The path from the notebook's folder. Raises ValueError for what may not come along."""
    if not file.path.is_relative_to(beside):
        raise ValueError("it does not lie beside the notebook, or in a folder there")
    inside = file.path.relative_to(beside)
    for part in inside.parts:
        if not NAME.fullmatch(part):
            raise ValueError("give it a plain name of letters, digits, - and _, at most 100 characters long")
        if any(fnmatch(part, pattern) for pattern in NOT_GRADED):
            raise ValueError("files of this kind, and in such folders, are kept out of grading")
        if any(fnmatch(part.lower(), pattern) for pattern in COMPILED):
            raise ValueError("compiled code does not come along; hand in its Python source")
        if any(fnmatch(part.lower(), pattern) for pattern in SETTINGS):
            raise ValueError("it would change how Python or Jupyter start")
    module = inside.parts[0].split(".")[0]
    if inside.name.endswith(tuple(all_suffixes())) and hides(module):
        raise ValueError(f"its name hides the module {said(module)} that Python or the course has; rename it")
    return inside


def hides(module: str) -> bool:
    """Whether the course's Python has a module of this name; a folder without an ``__init__.py`` is none."""
    try:
        spec = importlib.util.find_spec(module)
    except (ValueError, ImportError, AttributeError):  # __main__
        return True
    return spec is not None and spec.origin is not None
