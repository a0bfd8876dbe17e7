"""What the build writes, renews and deletes, and what it leaves alone: work, and what others made."""

from __future__ import annotations

import json

import nbformat
import pytest

from tests.tiny_course import LAB, LESSON, names
from tools import build


def test_stale_notebooks_are_found_and_renewed(course, capsys):
    root = course(**{"lessons/01-tiny.md": LESSON, "lessons/02-gone.md": LESSON})
    assert build.main(["--check"], root) == 1
    assert not (root / "lessons").exists()  # --check writes nothing
    assert build.main([], root) == 0 and build.main(["--check"], root) == 0

    (root / "content/lessons/02-gone.md").unlink()
    path = root / "lessons/01-tiny.ipynb"
    path.write_text(path.read_text().replace("Counting", "Mounting"))
    capsys.readouterr()
    assert build.main(["--check"], root) == 1
    assert capsys.readouterr().err.splitlines()[:2] == ["stale: lessons/01-tiny.ipynb", "stale: lessons/02-gone.ipynb"]
    assert build.main([], root) == 0 and build.main(["--check"], root) == 0
    assert list(names(root)) == ["lessons/01-tiny.ipynb"]


def test_only_changed_files_are_written(course, capsys):
    root = course(**{"lessons/01-tiny.md": LESSON, "lessons/02-tiny.md": LESSON})
    build.main([], root)
    stamps = {name: (root / name).stat().st_mtime_ns for name in names(root)}
    (root / "content/lessons/02-tiny.md").write_text(LESSON + "\nMore.\n")
    build.main([], root)
    changed = [name for name in stamps if (root / name).stat().st_mtime_ns != stamps[name]]
    assert changed == ["lessons/02-tiny.ipynb"]


def test_work_is_not_overwritten(course, capsys):
    root = course(**{"lessons/01-tiny.md": LESSON})
    build.main([], root)
    path = root / "lessons/01-tiny.ipynb"
    notebook = nbformat.read(path, as_version=4)
    notebook.cells[-1].execution_count = 1
    nbformat.write(notebook, path)
    worked_in = path.read_bytes()
    assert build.main([], root) == 1 and path.read_bytes() == worked_in
    assert "01-tiny.ipynb was run or made by hand" in capsys.readouterr().err
    assert build.main(["--force"], root) == 0 and path.read_bytes() != worked_in

    by_hand = root / "lessons/mine.ipynb"
    nbformat.write(nbformat.v4.new_notebook(), by_hand)
    assert build.main([], root) == 1 and by_hand.exists()


@pytest.mark.parametrize("ledger", [None, 5, ["source"]])
def test_a_notebook_of_somebody_elses_is_not_overwritten(course, capsys, ledger):
    root = course(**{"lessons/01-tiny.md": LESSON})
    (root / "lessons").mkdir()
    theirs = json.dumps({"cells": [], "metadata": {"ledger": ledger}, "nbformat": 4, "nbformat_minor": 5})
    (root / "lessons/01-tiny.ipynb").write_text(theirs)
    assert build.main([], root) == 1 and (root / "lessons/01-tiny.ipynb").read_text() == theirs
    assert "was run or made by hand" in capsys.readouterr().err


def test_nothing_else_is_released(course, capsys):
    root = course(**{"labs/lab01-tiny.md": LAB})
    (root / "content/labs/lab01-tiny.bank.py").write_text("wrong = ['3 * x']")
    assert build.main([], root) == 0
    assert not list(root.glob("labs/**/*.py")) and not list(root.glob("solutions/**/*.py"))
    (root / "solutions/lab01-tiny/helper.py").write_text("answer = 42")
    assert build.main([], root) == 1
    assert "solutions/lab01-tiny/helper.py: move it away" in capsys.readouterr().err


def test_an_unwritable_folder_is_one_sentence(course, capsys):
    root = course(**{"lessons/01-tiny.md": LESSON})
    (root / "lessons").write_text("a file where the folder should be")
    assert build.main([], root) == 1
    said = capsys.readouterr().err
    assert said.startswith("tools.build: ") and "lessons" in said and len(said.splitlines()) == 1
