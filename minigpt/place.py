"""Where a notebook stands: in a student's work/, in the course's own folders, or anywhere else (Colab, a grader).

    folder = readings_folder(READINGS_DIR)    where a lab saves what it measured, said and never a temporary folder
    own_copy()                                a word for whoever runs the course's own copy of a notebook

``work/`` is made by ``make lab`` (tools/place.py). This file imports no torch.
"""

from __future__ import annotations

import os
from pathlib import Path

COURSE = Path(__file__).resolve().parent.parent  # where the package is installed from its repository
WORK = "work"
OURS = ("lessons", "labs")  # generated, committed, and the same for everybody


def readings_folder(given: str | os.PathLike | None = None) -> Path:
    """The folder for a lab's readings, printed: ``given``, or where it is None, one that whoever runs the lab finds.

    That is ``work/readings`` for a notebook in work/, ``build/readings`` for one in the course's own folders, and
    ``readings`` beside any other.
    """
    room = _room()
    if given is not None:
        folder = Path(given).resolve()
    elif room == WORK:
        folder = COURSE / WORK / "readings"
    elif room in (*OURS, "solutions"):
        folder = COURSE / "build" / "readings"
    else:
        folder = Path.cwd() / "readings"
    print(f"Readings are saved in {folder}")
    return folder


def own_copy() -> None:
    """Print, in lessons/ and labs/ alone, that what is saved there gets in the way of the course's next version."""
    if (room := _room()) in OURS:
        print(
            f"This is the course's own copy, in {room}/: what you save here stops `git pull` from updating it. "
            f"Yours is in {WORK}/: `make lab` makes it and opens it."
        )


def _room() -> str | None:
    """The course's folder that this process runs in: "work", "labs" ...; None at its top, and elsewhere."""
    here = Path.cwd().resolve()
    return here.relative_to(COURSE).parts[0] if COURSE in here.parents else None
