"""The runner on tiny notebooks, one for each way to fail. They run once; the tests read what became of them."""

import json
import re
import signal
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest

from tools import ROOT, run, supervise
from tools.execute import why_dead
from tools.supervise import Notebook, assigned

BUDGET = {"minutes": {"cpu": 2, "gpu": 2}, "memory_gb": {"ram": 2, "vram": 2}}
PARAMETERS = "DEVICE = 'auto'\nSEED: int = 0\nREADINGS_DIR = 'readings'"


def write(path: Path, *cells: str, budget=BUDGET, tags=()) -> None:
    """A notebook of code cells; the first is the parameters cell, the last gets ``tags``."""
    new = nbformat.v4.new_code_cell
    made = [new(PARAMETERS, metadata={"tags": ["parameters"]}), *(new(source) for source in cells)]
    made[-1].metadata["tags"] = list(tags) or made[-1].metadata.get("tags", [])
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    metadata = {"kernelspec": kernel, "ledger": {"title": f"Title of {path.stem}", "kind": "lab", **(budget or {})}}
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(nbformat.v4.new_notebook(cells=made, metadata=metadata), path)


def lab(root: Path, name: str) -> Path:
    return root / "solutions" / name / f"{name}.ipynb"


def command(root: Path, *arguments: str) -> SimpleNamespace:
    """The runner's command in this process, which saves its imports: exit code, standard output and error."""
    with redirect_stdout(StringIO()) as stdout, redirect_stderr(StringIO()) as stderr:
        code = run.main(["--root", str(root), *arguments])
    return SimpleNamespace(returncode=code, stdout=stdout.getvalue(), stderr=stderr.getvalue())


@pytest.fixture(scope="module")
def course(tmp_path_factory) -> Path:
    """A course of seven notebooks, all but one of which fail, in a way of their own."""
    root = tmp_path_factory.mktemp("course")
    good = (
        "from minigpt.memory.readings import not_on_cpu\nnot_on_cpu('train on the whole set')\n"
        "print(SEED, READINGS_DIR)"
    )
    big = "block = bytearray(300_000_000); block[::4096] = b'x' * len(block[::4096]); del block"
    write(root / "lessons" / "01-good.ipynb", good)
    write(lab(root, "lab01-error"), "1 + 1", "# a comment\n{}['missing key']")
    write(lab(root, "lab02-exit"), "raise SystemExit(0)", "never = 1")
    write(lab(root, "lab03-killed"), "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", "print('unreached')")
    small = {"minutes": {"cpu": 0.001, "gpu": 0.001}, "memory_gb": {"ram": 0.1, "vram": 2}}
    write(lab(root, "lab04-big"), big, budget=small)
    write(lab(root, "lab05-skipped"), "1 + 1", "2 + 2", tags=["skip-execution"])
    write(lab(root, "lab06-undeclared"), "1 + 1", budget=None)
    return root


@pytest.fixture(scope="module")
def ran(course):
    """(what the command answered, {notebook: its entry in results.json})."""
    answer = command(course, "-p", "SEED", "7")
    results = json.loads((course / "build/run/results.json").read_text())
    return answer, {entry["name"]: entry for entry in results["notebooks"]}


@pytest.mark.parametrize(
    "name, problem",
    [
        ("lab01-error", r"cell 4 failed with KeyError: 'missing key' \(in: \{\}\['missing key'\]\)"),
        ("lab02-exit", r"cell 3 raised SystemExit, so the cells after it never ran: raise SystemExit\(0\)"),
        ("lab03-killed", r"killed by signal 9 \(SIGKILL\): most likely out of memory \(in cell 3: import os, signal\)"),
        ("lab04-big", r"over budget: used 0\.[3-9]\d GB of RAM, declared 0\.10 GB"),
        ("lab04-big", r"over budget: took 0\.\d\d minutes, declared 0\.001"),
        ("lab05-skipped", r"1 code cells were not executed: cell 4"),
        ("lab06-undeclared", r"declares no budget"),
    ],
)
def test_each_way_to_fail_is_named(ran, name, problem):
    answer, results = ran
    assert results[name]["status"] == "failed"
    assert any(re.search(problem, found) for found in results[name]["problems"]), results[name]["problems"]
    assert re.search(problem, answer.stdout)  # said in the terminal, too


def test_one_failure_does_not_stop_the_others(ran):
    answer, results = ran
    assert answer.returncode == 1
    assert len(results) == 7 and results["01-good"]["status"] == "passed", answer.stderr
    assert "1 of 7 passed" in answer.stdout
    assert "Traceback" not in answer.stdout + answer.stderr


def test_parameters_reach_the_notebook(course, ran):
    outputs = nbformat.read(course / "build/run/01-good.ipynb", as_version=4).cells[-1].outputs
    assert outputs[0].text.splitlines()[-1] == f"7 {course / 'build/run/readings'}"


def test_a_dry_run_lists_what_a_cpu_could_not_do(course, ran):
    if "dry run" not in ran[0].stdout:
        pytest.skip("this machine has a GPU, so the run is not a dry one")
    assert "not on a CPU  01-good: train on the whole set" in ran[0].stdout
    assert "train on the whole set" in (course / "build/report/index.html").read_text()


def test_resume_keeps_what_passed_and_only_that(course, ran):
    answer = command(course, "--resume", "-p", "SEED", "7", "--only", "01", "--only", "lab05")
    assert "kept    01-good" in answer.stdout and "kept    lab05" not in answer.stdout
    left = json.loads((course / "build/run/results.json").read_text())["notebooks"]
    assert [entry["name"] for entry in left] == list(ran[1])  # a part run drops no other result
    notebook = Notebook(course / "lessons" / "01-good.ipynb")
    mark = run.fingerprint(notebook, {"SEED": 7}, ROOT, "cpu")
    assert mark != run.fingerprint(notebook, {"SEED": 8}, ROOT, "cpu") != run.fingerprint(notebook, {}, ROOT, "gpu")


def test_interrupt_ends_the_notebook_and_keeps_the_rest(course, ran, tmp_path):
    write(tmp_path / "lessons" / "01-quick.ipynb", "1 + 1")
    slow = "import os, time\nopen('pid', 'w').write(str(os.getpid()))\ntime.sleep(90)"
    write(tmp_path / "lessons" / "02-slow.ipynb", slow)
    line = [sys.executable, "-m", "tools.run", "--root", str(tmp_path)]
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)  # background jobs ignore it, and so would this
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    signal.signal(signal.SIGINT, before)
    pid = tmp_path / "build" / "run" / "work" / "02-slow" / "pid"
    deadline = time.monotonic() + 60
    while not (pid.exists() and pid.read_text()) and time.monotonic() < deadline:
        time.sleep(0.1)
    kernel = int(pid.read_text())
    process.send_signal(signal.SIGINT)
    _, complaint = process.communicate(timeout=90)
    assert process.returncode == 130 and "--resume" in complaint and "Traceback" not in complaint
    assert not supervise.psutil.pid_exists(kernel)
    kept = json.loads((tmp_path / "build/run/results.json").read_text())["notebooks"]
    assert [(entry["name"], entry["status"]) for entry in kept] == [("01-quick", "passed")]


def test_a_notebook_that_takes_too_long_is_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr(supervise, "GRACE", 0)
    monkeypatch.setattr(supervise, "PATIENCE", 4)
    path = tmp_path / "01-endless.ipynb"
    write(path, "while True: pass", budget={"minutes": {"cpu": 0.01}, "memory_gb": {"ram": 2}})
    result = supervise.run_one(Notebook(path), {}, tmp_path / "run", ROOT, gpu=False, mark="")
    assert result.status == "failed" and "stopped after 0.0 minutes" in result.problems[0]
    assert result.seconds < 20


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["-p", "SEDE", "1"], "parameter SEDE is in none of the notebooks; they have: DEVICE, READINGS_DIR, SEED"),
        (["-p", "SEED", "{1}"], "parameter SEED is {1}; allowed: what JSON can hold"),
        (["-p", "SEED", "b'a'"], "parameter SEED is b'a'"),
        (["-p", "SEED", "1j"], "parameter SEED is 1j"),
        (["--only", "lab77"], "--only is 'lab77'; there is 01-good, lab01-error"),
        (["--source", "labs", "--root", "nowhere"], "no notebooks in lessons/ or labs/"),
    ],
)
def test_bad_input_is_one_sentence(course, capsys, arguments, words):
    assert run.main(["--root", str(course), *arguments]) == 2
    complaint = capsys.readouterr().err
    assert words in complaint and complaint.count("\n") == 1


def test_a_parameter_goes_only_where_it_is_known(course, tmp_path):
    write(tmp_path / "02-plain.ipynb", "1 + 1")
    notebooks = [Notebook(course / "lessons" / "01-good.ipynb"), Notebook(tmp_path / "02-plain.ipynb")]
    notebooks[1].parameters = set()
    said = []
    shared = run.share_parameters(notebooks, {"SEED": 3}, said.append)
    assert shared == {"01-good": {"SEED": 3}, "02-plain": {}}
    assert said == ["Parameter SEED goes to 01-good; the others have no parameter of that name."]


LEDGERS = [None, [], {"title": 1}, {"minutes": 1}, {"minutes": {"cpu": "1"}}, {"memory_gb": None}]
LEDGERS += [{"minutes": {"cpu": float("inf")}}, {"memory_gb": {"ram": float("nan")}}, {"minutes": {"cpu": -1}}]
EMPTY = {"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
BROKEN = ["{", "[]", "5", "", json.dumps(EMPTY | {"cells": None})]
BROKEN += [json.dumps(EMPTY | {"metadata": {"ledger": ledger}}) for ledger in LEDGERS]


@pytest.mark.parametrize("text", BROKEN)
def test_a_broken_notebook_is_named(tmp_path, capsys, text):
    (tmp_path / "lessons").mkdir()
    (tmp_path / "lessons" / "01-broken.ipynb").write_text(text)
    assert run.main(["--root", str(tmp_path)]) == 2
    complaint = capsys.readouterr().err
    assert "01-broken.ipynb cannot be read" in complaint and complaint.count("\n") == 1


def test_assigned_reads_every_kind_of_assignment():
    assert assigned("A = 1\nB: int = 2\nC: 'str | None' = None  # why\nprint(A)\nD, E = 1, 2") == {"A", "B", "C"}


VALUES = [("3", 3), ("1e-3", 0.001), ("true", True), ("None", None), ("micro", "micro")]


@pytest.mark.parametrize("text, expected", VALUES)
def test_values_on_the_command_line(text, expected):
    assert run.value(text) == expected and type(run.value(text)) is type(expected)


ENDS = [(-9, "out of memory"), (137, "out of memory"), (-11, "SIGSEGV"), (3, "exit code 3")]


@pytest.mark.parametrize("code, words", ENDS)
def test_a_dead_kernel_is_explained(code, words):
    assert words in why_dead(code)
    assert ("out of memory" in why_dead(code)) == (code in (-9, 137))
