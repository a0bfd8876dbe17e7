"""Nothing is left in temporary folders: whatever makes one is run, and the folder looked at before and after."""

from __future__ import annotations

import base64
import io
import os
import re
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from tools import ROOT, opening

APART = """
from minigpt.memory.measured.apart import measure_apart
from minigpt.memory.plan import TrainingPlan
from minigpt.model import GPTConfig
measure_apart(GPTConfig(n_layer=1, n_embd=8, n_head=2, context=8, vocab_size=11), TrainingPlan(seq_len=8))
"""
FAILS = """
from minigpt.memory.measured.apart import Call, run_apart
assert isinstance(run_apart({"x": Call("os:abort")}, keep_errors=True)["x"], RuntimeError)
"""
RECIPE = "from minigpt.checks.qlora import recipe; recipe._tiny()"


def packed() -> str:
    """The cell of a notebook that carries a package, here an empty one."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as wheel:
        wheel.writestr("minigpt/__init__.py", "")
    cell = opening.CARRIED.format(wheel=base64.encodebytes(file.getvalue()).decode())
    return f"{cell}\nfolder = None\nimport gc, minigpt\ngc.collect()\nassert os.path.exists(minigpt.__file__)"


def left(folder: Path) -> list[Path]:
    """What lies there, but for torch's one cache of compiled code, which every process of this user shares."""
    return [path for path in folder.iterdir() if not path.name.startswith("torchinductor_")]


def run(code: str, temporary: Path, *options: str) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(temporary), "OMP_NUM_THREADS": "1"}
    ran = subprocess.run([sys.executable, *options, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.slow
@pytest.mark.parametrize("code", [APART, FAILS, RECIPE], ids=["apart", "fails", "tiny llama"])
def test_a_process_takes_its_temporary_folders_along(code, tmp_path):
    run(code, tmp_path)
    assert left(tmp_path) == []


def test_a_notebook_that_carries_the_package_takes_it_along(tmp_path):
    run(packed(), tmp_path, "-I", "-S")  # where no minigpt is installed
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_child_whose_parent_was_killed_removes_its_folder(tmp_path):
    code = "from minigpt.memory.measured.apart import Call, run_apart; run_apart({'x': Call('tests.test_litter:wait')})"
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, env=env)
    try:
        assert until(lambda: [path for path in tmp_path.glob("apart-*/started")])
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    assert until(lambda: not left(tmp_path))


def wait() -> None:
    """What the child does until its parent is gone."""
    Path("started").touch()
    time.sleep(600)


def until(true, seconds: float = 240) -> bool:
    end = time.monotonic() + seconds
    while not true() and time.monotonic() < end:
        time.sleep(0.1)
    return bool(true())


def test_nothing_asks_for_a_folder_that_nobody_removes():
    """``mkdtemp`` leaves its folder to the caller; ``TemporaryDirectory`` goes when its name or the process does."""
    texts = [*ROOT.glob("content/**/*.md"), *ROOT.glob("content/**/*.py")]
    texts += [*ROOT.glob("minigpt/**/*.py"), *ROOT.glob("tools/**/*.py")]
    assert len(texts) > 100
    assert [str(path) for path in texts if re.search(r"\bmkdtemp\b", path.read_text(encoding="utf8"))] == []
