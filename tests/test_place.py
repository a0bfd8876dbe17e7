"""A student's place: work/ is filled and never overwritten, JupyterLab shows it alone, and nothing of it meets git."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

from minigpt import place as standing
from tools import ROOT, place

LESSON, LAB = "lessons/01-tiny.ipynb", "labs/lab01-tiny/lab01-tiny.ipynb"


def notebook(source: str, run: bool = False) -> str:
    outputs = [new_output("stream", text="2\n")] if run else []
    cell = new_code_cell(source, id="one", outputs=outputs, execution_count=1 if run else None)
    return nbformat.writes(new_notebook(cells=[cell]))


@pytest.fixture
def course(tmp_path):
    for name in ("index.ipynb", LESSON, LAB):
        publish(tmp_path, name, "1 + 1")
    place.fill(tmp_path)
    return tmp_path


def publish(root: Path, name: str, source: str, run: bool = False) -> str:
    """A version of the course, as ``git pull`` brings it."""
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(notebook(source, run))
    return path.read_text()


def files(root: Path) -> dict[str, str]:
    work = root / "work"
    return {path.relative_to(work).as_posix(): path.read_text() for path in sorted(work.rglob("*.ipynb"))}


def test_work_is_a_copy_and_a_second_time_changes_nothing(course):
    copies = files(course)
    assert set(copies) == {"index.ipynb", LESSON, LAB}
    assert all(text == (course / name).read_text() for name, text in copies.items())
    before = (course / "work" / LAB).stat().st_mtime_ns
    assert place.fill(course) == ["work/: 3 notebooks, all there already."]
    assert files(course) == copies and (course / "work" / LAB).stat().st_mtime_ns == before


def test_what_nobody_saved_is_brought_up_to_date_and_what_is_gone_comes_back(course):
    new = publish(course, LESSON, "1 + 2")
    (course / "work" / LAB).unlink()
    assert place.fill(course) == ["work/: 3 notebooks, 1 copied, 1 brought up to date."]
    assert files(course)[LESSON] == new and LAB in files(course)


@pytest.mark.parametrize("mine", [notebook("my answer"), notebook("1 + 1", run=True), "not even a notebook"])
def test_what_somebody_saved_is_never_touched(course, mine):
    (course / "work" / LAB).write_text(mine)
    assert place.fill(course) == ["work/: 3 notebooks, all there already."]  # no news, no word
    new = publish(course, LAB, "1 + 2")
    for _ in range(2):
        said = place.fill(course)
        assert files(course)[LAB] == mine and files(course)["labs/lab01-tiny/lab01-tiny.new.ipynb"] == new
    assert said == ["work/: 3 notebooks, all there already."]  # it was said once
    newer = publish(course, LAB, "1 + 3")
    [_, news] = place.fill(course)
    assert news.endswith("is yours and stays as it is; the course's new version lies beside it: lab01-tiny.new.ipynb")
    assert files(course)[LAB] == mine and files(course)["labs/lab01-tiny/lab01-tiny.new.ipynb"] == newer


def test_a_new_version_that_somebody_changed_is_theirs_too(course):
    (course / "work" / LAB).write_text("mine")
    publish(course, LAB, "1 + 2")
    place.fill(course)
    beside = course / "work" / "labs/lab01-tiny/lab01-tiny.new.ipynb"
    beside.write_text("mine, too")
    publish(course, LAB, "1 + 3")
    [_, news] = place.fill(course)
    assert "are yours and stay as they are" in news and beside.read_text() == "mine, too"


def test_the_new_version_taken_over_is_the_course_s_again(course):
    (course / "work" / LAB).write_text("mine")
    publish(course, LAB, "1 + 2")
    place.fill(course)
    os.replace(course / "work" / "labs/lab01-tiny/lab01-tiny.new.ipynb", course / "work" / LAB)
    new = publish(course, LAB, "1 + 3")
    assert place.fill(course) == ["work/: 3 notebooks, 1 brought up to date."]
    assert files(course)[LAB] == new


@pytest.mark.parametrize("record", [None, "{", "[]"])
def test_without_the_record_everything_is_somebody_s(course, record):
    path = course / "work" / place.RECORD
    path.unlink() if record is None else path.write_text(record)
    old = files(course)[LAB]
    publish(course, LAB, "1 + 2")
    [_, news] = place.fill(course)
    assert "is yours" in news and files(course)[LAB] == old


def test_what_was_run_in_the_course_s_own_folder_is_copied_as_the_student_s(tmp_path):
    mine = publish(tmp_path, LAB, "my answer", run=True)
    [_, said] = place.fill(tmp_path)
    assert "was run in the course's own folder" in said and f"git checkout -- {LAB}" in said
    assert files(tmp_path)[LAB] == mine
    publish(tmp_path, LAB, "1 + 1")  # git checkout
    assert "is yours" in place.fill(tmp_path)[1] and files(tmp_path)[LAB] == mine


def test_what_is_refused(tmp_path, capsys):
    assert place.main([], tmp_path) == 2
    assert "no notebooks in lessons/ or labs/" in capsys.readouterr().err
    publish(tmp_path, LESSON, "1 + 1")
    (tmp_path / "work").write_text("")
    assert place.main([], tmp_path) == 2
    assert capsys.readouterr().err == "place: work is a file; it must be a folder, or nothing: move it away\n"


def test_as_root_it_says_what_to_type(course, capsys, monkeypatch):
    opened = []
    monkeypatch.setattr(place, "open_lab", opened.append)
    monkeypatch.setattr(place, "is_root", lambda: True)
    assert place.main(["--no-browser"], course) == 2
    assert "you are root" in (said := capsys.readouterr().err) and "make lab ARGS=--allow-root" in said
    assert place.main(["--allow-root", "--port=1"], course) == 0
    monkeypatch.setattr(place, "is_root", lambda: False)
    assert place.main([], course) == 0
    assert opened == [["--allow-root", "--port=1"], []]


def test_git_and_ruff_never_see_it():
    for name in ("work/index.ipynb", "work/labs/lab01-count/lab01-count.ipynb", "work/readings/x.json"):
        ignored = subprocess.run(["git", "check-ignore", "-q", name], cwd=ROOT)
        if ignored.returncode == 128:
            pytest.skip("not a clone: there is no git to ask")
        assert ignored.returncode == 0, name
    assert subprocess.run(["git", "check-ignore", "-q", "labs/x"], cwd=ROOT).returncode == 1


@pytest.mark.parametrize(
    ("where", "folder", "word"),
    [
        ("work/labs/lab01-tiny", "work/readings", False),
        ("labs/lab01-tiny", "build/readings", True),
        ("lessons", "build/readings", True),
        ("solutions/lab01-tiny", "build/readings", False),
        ("build/grading/autograded/ann/lab01-tiny", "build/grading/autograded/ann/lab01-tiny/readings", False),
        (".", "readings", False),
    ],
)
def test_readings_lie_where_whoever_runs_the_lab_finds_them(tmp_path, monkeypatch, capsys, where, folder, word):
    monkeypatch.setattr(standing, "COURSE", tmp_path)
    (tmp_path / where).mkdir(parents=True, exist_ok=True)
    monkeypatch.chdir(tmp_path / where)
    assert standing.readings_folder() == tmp_path / folder
    assert capsys.readouterr().out == f"Readings are saved in {tmp_path / folder}\n"
    assert standing.readings_folder("there") == tmp_path / where / "there"
    capsys.readouterr()
    standing.own_copy()
    said = capsys.readouterr().out
    assert ("`make lab`" in said and "work/" in said) == word and bool(said) == word


def test_every_notebook_says_in_the_course_s_own_folders_where_one_s_own_copy_is():
    for path in [*ROOT.glob("lessons/[0-9]*.ipynb"), *ROOT.glob("labs/*/*.ipynb")]:
        cells = {cell.id: cell.source for cell in nbformat.read(path, as_version=4).cells}
        code = compile(cells["bootstrap"], "bootstrap", "exec")
        said = subprocess.run(
            [sys.executable, "-c", cells["bootstrap"]], cwd=path.parent, capture_output=True, text=True, check=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        assert code and "`make lab` makes it" in said.stdout, path.name


@pytest.mark.slow
def test_jupyterlab_shows_work_alone_without_news_or_nbgrader_s_panes(tmp_path):
    """The server itself, as `make lab` starts it, in a copy of the course: nobody's work/ is touched by a test."""
    root, home = tmp_path / "course", tmp_path / "home"
    home.mkdir()
    for name in ("tools", "lessons", "labs", "solutions"):
        shutil.copytree(ROOT / name, root / name)
    shutil.copy(ROOT / "index.ipynb", root)
    before = {path: path.read_bytes() for path in (root / "tools" / "lab").iterdir()}
    with open(tmp_path / "log", "w") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "tools.place", "--no-browser", "--allow-root", "--port=0"], cwd=root,
            stderr=log, stdout=log,
            env={**os.environ, "HOME": str(home), "JUPYTER_RUNTIME_DIR": str(home / "run"), "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
    try:
        for _ in range(600):
            if found := re.search(
                r"(http://127\S+?)/lab/tree/index.ipynb\?token=(\w+)", (tmp_path / "log").read_text()
            ):
                break
            assert server.poll() is None, (tmp_path / "log").read_text()
            time.sleep(0.1)
        address, token = found.groups()  # printed, so that no browser is needed

        def ask(path: str) -> str:
            with urllib.request.urlopen(f"{address}/{path}?token={token}", timeout=60) as answer:
                return answer.read().decode()

        listed = {entry["name"] for entry in json.loads(ask("api/contents"))["content"]}
        assert {"index.ipynb", "lessons", "labs"} <= listed and not {"solutions", "content", "tools"} & listed
        settings = json.loads(ask("lab/api/settings/@jupyterlab/apputils-extension:notification"))
        assert settings["schema"]["properties"]["fetchNews"]["default"] == "false"
        page = json.loads(re.search(r'<script id="jupyter-config-data"[^>]*>(.*?)</script>', ask("lab"), re.S)[1])
        assert "@jupyter/nbgrader" in page["disabledExtensions"]
        with pytest.raises(urllib.error.HTTPError, match="404"):
            ask("formgrader")
    finally:
        server.terminate()
        server.wait(timeout=60)
    assert not list(home.glob(".jupyter/lab/**/*.json"))  # no settings in the home folder
    assert {path: path.read_bytes() for path in (root / "tools" / "lab").iterdir()} == before
