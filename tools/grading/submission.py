"""A submission before it runs: found, read, repaired and copied to where it is graded. Its own files never change.

A submission is a folder in which somebody put a notebook: under any name, in a folder or a zip, saved by any editor,
with copies and helper files beside it. What can be graded is; everything else is a sentence that says what to do.
"""

from __future__ import annotations

import os
from pathlib import Path

import nbformat

from tools.grading.choice import choose
from tools.grading.files import CHECKPOINTS, gather
from tools.grading.helpers import carry
from tools.grading.notebook import new_cell, read
from tools.grading.repair import repair

NOTES = "before-grading"  # the id of the cell with the notes


def check(folder: Path, release: Path, output: Path) -> list[str]:
    """Look over the submission in ``folder``, write it to ``output``, and files that it needs beside that.

    ``release`` is the notebook that was handed out. Returns what was repaired or not used, a sentence each. Raises
    ValueError, one sentence, where there is nothing to grade.
    """
    files, notes = gather(folder)
    given = read(release)
    try:
        chosen, found = choose(files, release.name, given)
    except ValueError as error:
        raise ValueError("; ".join([str(error), *notes[:2]])) from None
    notebook, repairs = repair(chosen.notebook, given)
    output.parent.mkdir(parents=True, exist_ok=True)
    home = chosen.file.path.parent
    home = home.parent if home.name == CHECKPOINTS else home
    beside = [file for file in files if ".ipynb" not in str(file.path).lower() and file.path != chosen.file.path]
    notes += found + repairs + carry(beside, home, output.parent)
    if notes:  # at the top of the feedback, and as they are: a student's file names are in them
        text = "\n".join(f"- {note}" for note in notes)
        notebook.cells.insert(0, new_cell("markdown", f"**Before this was graded:**\n\n```text\n{text}\n```", NOTES))
    temporary = output.with_suffix(".part")
    temporary.write_text(nbformat.writes(notebook), encoding="utf8")
    os.replace(temporary, output)
    return notes
