"""What is kept comes back bit for bit, whatever was done to it. The oracle is a walk with checksums of its own."""

import hashlib
import os
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tools.grading import untouched
from tools.grading.untouched import Kept, children, watched


def sums(*folders: Path) -> dict[str, tuple]:
    """Mode, and digest or target, of everything below."""
    found = {}
    for folder in folders:
        for path in [folder, *sorted(folder.rglob("*"))]:
            status = path.lstat()
            what = os.readlink(path) if path.is_symlink() else ""
            if stat.S_ISREG(status.st_mode):
                what = hashlib.sha256(path.read_bytes()).hexdigest()
            found[str(path)] = (status.st_mode, what)
    return found


@pytest.fixture
def places(tmp_path) -> tuple[Path, Path]:
    root, home = tmp_path / "course", tmp_path / "home"
    for name in ("solutions/lab01-a/lab01-a.ipynb", "build/grading/gradebook.db", "nbgrader_config.py",
                 "build/grading/submitted/a/lab01-a/lab01-a.ipynb", "minigpt/model.py"):  # fmt: skip
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(name.encode() * 100)
    (root / "solutions" / "link").symlink_to("lab01-a")
    (root / "solutions" / "empty").mkdir(mode=0o750)
    (home / ".ipython" / "profile_default" / "startup").mkdir(parents=True)
    (home / ".bashrc").write_text("# mine\n")
    os.chmod(home / ".bashrc", 0o600)
    return root, home


def overwrite(root, home):
    (root / "nbgrader_config.py").write_text("c = (")


def same_size_and_time(root, home):
    path = root / "build/grading/gradebook.db"
    status, content = path.stat(), path.read_bytes()
    time.sleep(0.02)
    path.write_bytes(content[::-1])
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def remove(root, home):
    shutil.rmtree(root / "build" / "grading")
    (home / ".bashrc").unlink()


def add(root, home):
    (home / ".ipython/profile_default/startup/00.py").write_text("1/0")
    (home / ".jupyter").mkdir()
    (home / ".config" / "matplotlib").mkdir(parents=True)
    (home / ".config" / "matplotlib" / "matplotlibrc").write_text("backend: nothing")
    (home / ".jupyter" / "nbgrader_config.py").write_text("raise SystemExit")
    (root / "sitecustomize.py").write_text("raise SystemExit")
    (root / "build/grading/submitted/x/lab01-a").mkdir(parents=True)


def swap(root, home):
    (root / "minigpt" / "model.py").unlink()
    (root / "minigpt" / "model.py").mkdir()
    (root / "solutions" / "link").unlink()
    (root / "solutions" / "link").symlink_to("/etc")
    shutil.rmtree(root / "solutions" / "lab01-a")
    (root / "solutions" / "lab01-a").symlink_to("/etc")


def rights(root, home):
    os.chmod(root / "build" / "grading" / "submitted", 0)
    os.chmod(root / "solutions", 0o777)
    os.chmod(root / "build" / "grading", 0)
    os.chmod(root, 0o700)
    os.chmod(home / ".bashrc", 0o4777)


def special(root, home):
    (root / "build/grading/gradebook.db").unlink()
    os.mkfifo(root / "build/grading/gradebook.db")
    os.mkfifo(home / ".profile")


def hard_link(root, home):
    os.link(root / "build/grading/gradebook.db", root.parent / "x")
    (root.parent / "x").write_bytes(b"")


@pytest.mark.parametrize(
    "attack", [overwrite, same_size_and_time, remove, add, swap, rights, special, hard_link], ids=lambda a: a.__name__
)
def test_everything_comes_back(places, attack):
    root, home = places
    kept, before = Kept(watched(root, home)), sums(root, home)
    assert kept.changed() == [] and kept.restore() == []
    attack(root, home)
    notes = kept.restore()
    assert notes and all("was changed" in note and "is put back" in note for note in notes)
    assert sums(root, home) == before
    assert kept.changed() == []


def test_what_the_grader_writes_stays(places):
    root, home = places
    kept = Kept(watched(root, home))
    (root / "build/grading/gradebook.db").write_text("new scores")
    (root / "build/grading/scores.csv").write_text("student")
    kept.take([root / "build/grading/gradebook.db", root / "build/grading/scores.csv"])
    assert kept.restore() == [] and (root / "build/grading/gradebook.db").read_text() == "new scores"
    (root / "build/grading/logs").mkdir()
    (root / "build/grading/logs/anna.log").write_text("a log")
    kept.take([root / "build/grading"])  # with what is not kept
    (root / "build/grading/logs/anna.log").write_text("another log")
    assert kept.restore() == [] and (root / "build/grading/logs/anna.log").read_text() == "another log"


def test_an_unchanged_file_is_not_read_again(places, monkeypatch):
    root, home = places
    kept = Kept(watched(root, home))
    monkeypatch.setattr(Path, "read_bytes", lambda path: pytest.fail(f"{path} is read"))
    assert kept.changed() == []


def test_a_file_that_is_too_large_is_said(places, monkeypatch):
    root, home = places
    monkeypatch.setattr(untouched, "LARGEST", 10)
    kept = Kept([root / "nbgrader_config.py"])
    (root / "nbgrader_config.py").write_text("x" * 40)
    assert "could not be put back" in kept.restore()[0]


HIDES = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.environ.clear()
        os.execve(sys.executable, [sys.executable, "-c", "import time; time.sleep(600)"], {})
    os._exit(0)
"""


def test_what_forked_twice_is_ended_and_files_come_back(places):
    root, home = places
    before, notes, others = sums(root, home), list[str](), children()  # multiprocessing's, of an earlier test
    with untouched.untouched(root, home, notes):
        subprocess.run([sys.executable, "-c", HIDES], check=True)
        overwrite(root, home)
        if sys.platform == "linux":
            assert set(children()) - set(others)  # it is ours now
    assert set(children()) == set(others) and sums(root, home) == before and len(notes) == 1
