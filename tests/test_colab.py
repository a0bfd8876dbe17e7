"""A packed notebook runs where neither the package nor the repository is, and leaves torch and numpy alone."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import nbformat
import numpy
import pytest
import torch

from tests.tiny_course import LAB
from tools import ROOT, build, colab, settings

LESSON = """---
title: Tiny
read: 1
minutes: {cpu: 1, gpu: 1}
memory_gb: {ram: 1, vram: 1}
---

```{code-cell}
:tags: [setup]

import json
import subprocess
import sys
from importlib.resources import files

import numpy
import torch

import minigpt
from minigpt.model import GPT, GPTConfig

loss = GPT(GPTConfig.preset("nano"))(torch.ones(1, 8, dtype=torch.long), torch.ones(1, 8, dtype=torch.long))
child = [sys.executable, "-c", "import minigpt; print(minigpt.__file__)"]  # as a measurement in its own process
found = {
    "minigpt": minigpt.__file__,
    "child": subprocess.run(child, capture_output=True, text=True, check=True).stdout.strip(),
    "assets": {path.name: len(path.read_bytes()) for path in files("minigpt").joinpath("assets").iterdir()},
    "torch": [torch.__version__, torch.__file__],
    "numpy": [numpy.__version__, numpy.__file__],
    "finite": bool(torch.isfinite(loss)),
}
with open("found.json", "w") as file:
    json.dump(found, file)
```
"""
EXECUTE = """
import sys, nbformat
from nbclient import NotebookClient
notebook = nbformat.read(sys.argv[1], as_version=4)
NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
nbformat.write(notebook, sys.argv[1])
"""


@pytest.fixture(scope="module")
def stranger(tmp_path_factory) -> Path:
    """A Python with every library of this one and without the course's package."""
    folder = tmp_path_factory.mktemp("stranger")
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    place = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    site_packages = Path(subprocess.run(place, capture_output=True, text=True, check=True).stdout.strip())
    # A path in a .pth file is added, and that folder's own .pth files (an editable install) are not read.
    (site_packages / "libraries.pth").write_text(sysconfig.get_path("purelib"))
    return python


def copy_package(root: Path) -> None:
    shutil.copytree(ROOT / "minigpt", root / "minigpt", ignore=shutil.ignore_patterns("__pycache__"))


def execute(python: Path, notebook: Path) -> nbformat.NotebookNode:
    """Run a notebook in its folder, as on Colab: nothing of this repository in the environment."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment |= {"COLAB_RELEASE_TAG": "release-colab_test", "OMP_NUM_THREADS": "2"}
    options = dict(cwd=notebook.parent, env=environment, capture_output=True, text=True)
    assert "No module named 'minigpt'" in subprocess.run([python, "-c", "import minigpt"], **options).stderr
    ran = subprocess.run([python, "-c", EXECUTE, notebook.name], **options)
    assert ran.returncode == 0, ran.stderr
    return nbformat.read(notebook, as_version=4)


@pytest.fixture
def tiny(course):
    """A course of one lesson, with the real package and one asset more; packed."""
    root = course(**{"lessons/01-tiny.md": LESSON})
    copy_package(root)
    (root / "minigpt/assets").mkdir(exist_ok=True)
    (root / "minigpt/assets/probe.bin").write_bytes(bytes(range(256)) * 40)
    assert build.main([], root) == 0 and colab.main([], root) == 0
    return root


@pytest.mark.slow
def test_a_packed_notebook_runs_anywhere(tiny, stranger, tmp_path_factory):
    folder = tmp_path_factory.mktemp("empty")
    packed = folder / "01-tiny.ipynb"
    packed.write_bytes((tiny / "build/colab/01-tiny.ipynb").read_bytes())
    ran = execute(stranger, packed)
    found = json.loads((folder / "found.json").read_text())
    assert found["finite"]
    assert not Path(found["minigpt"]).is_relative_to(ROOT) and found["child"] == found["minigpt"]
    assert found["torch"] == [torch.__version__, torch.__file__]
    assert found["numpy"] == [numpy.__version__, numpy.__file__]
    real = {path.name: path.stat().st_size for path in (tiny / "minigpt/assets").iterdir()}
    assert found["assets"] == real
    assert [output for cell in ran.cells for output in cell.get("outputs", [])] == []  # set-up is quiet


@pytest.mark.slow
def test_the_first_lesson_runs_anywhere(stranger, tmp_path):
    lesson = min(ROOT.glob("lessons/*.ipynb"))
    notebook = colab.carry(nbformat.read(lesson, as_version=4), colab.wheel(ROOT), settings.pins(ROOT), lesson.parent)
    nbformat.write(notebook, tmp_path / lesson.name)
    ran = execute(stranger, tmp_path / lesson.name)
    assert all(cell.execution_count for cell in ran.cells if cell.cell_type == "code")


def test_what_is_packed(tiny):
    path = tiny / "build/colab/01-tiny.ipynb"
    before = path.read_bytes()
    assert colab.main([], tiny) == 0 and path.read_bytes() == before
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    title, bootstrap = notebook.cells[:2]
    assert "make colab" not in title.source and "http" not in title.source
    assert max(len(line) for line in bootstrap.source.split("\n")) <= 120
    code = re.sub(r"[A-Za-z0-9+/=]{20,}", "", bootstrap.source)  # without the wheel, whose letters spell anything
    assert "pip" not in code
    with zipfile.ZipFile(io.BytesIO(colab.wheel(tiny))) as wheel:
        packed = {name for name in wheel.namelist() if name.startswith("minigpt/")}
    assert packed == {path.relative_to(tiny).as_posix() for path in (tiny / "minigpt").rglob("*") if path.is_file()}


def test_labs_are_packed_as_students_get_them(course):
    root = course(**{"labs/lab01-tiny.md": LAB})
    copy_package(root)
    assert build.main([], root) == 0 and colab.main([], root) == 0
    assert [path.name for path in (root / "build/colab").iterdir()] == ["lab01-tiny.ipynb"]
    text = (root / "build/colab/lab01-tiny.ipynb").read_text()
    assert "the secret answer" not in text and "the secret test" not in text and "check-double" in text


def test_no_notebooks_is_said_in_one_sentence(course, capsys):
    assert colab.main([], course()) == 1
    assert capsys.readouterr().err == ("tools.colab: no notebooks in lessons/ and labs/: run `make notebooks` first\n")


@pytest.mark.parametrize("text", ["junk", "[]", '{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}'])
def test_a_notebook_of_no_build_is_named(course, capsys, monkeypatch, text):
    root = course()
    (root / "lessons").mkdir()
    (root / "lessons" / "01-other.ipynb").write_text(text)
    monkeypatch.setattr(colab, "wheel", lambda root: b"")
    assert colab.main([], root) == 1
    complaint = capsys.readouterr().err
    assert "01-other.ipynb is not a notebook of the build" in complaint and complaint.count("\n") == 1


def test_the_hosted_cell_installs_only_what_is_missing(course, monkeypatch):
    """On Colab, pip is asked without dependencies, and for nothing that is there; elsewhere not at all."""
    from tools import opening

    calls = []
    monkeypatch.setattr(subprocess, "run", lambda command, check: calls.append(command))
    versions = {"tqdm": "4.70.1", "no-such-package": "1.0"}
    ledger = {"colab": ["tqdm", "no-such-package"]}
    source = opening.install_cell(ledger, "https://github.com/owner/course", versions).source
    monkeypatch.delenv("COLAB_RELEASE_TAG", raising=False)
    exec(source, {})
    assert calls == []
    monkeypatch.setenv("COLAB_RELEASE_TAG", "release-colab_test")
    exec(source, {})
    assert calls == [[sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "no-such-package==1.0"]]
