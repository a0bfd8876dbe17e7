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

from tools import ROOT, report, run, supervise
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
        ("lab01-error", r"In \[3\] failed with KeyError: 'missing key' \(in: \{\}\['missing key'\]\)"),
        ("lab02-exit", r"In \[2\] raised SystemExit, so the cells after it never ran: raise SystemExit\(0\)"),
        (
            "lab03-killed",
            r"killed by signal 9 \(SIGKILL\): most likely out of memory \(at In \[2\]: import os",
        ),
        ("lab04-big", r"over budget: used 0\.[3-9]\d GB of RAM, declared 0\.10 GB"),
        ("lab04-big", r"over budget: took 0\.\d\d minutes, declared 0\.001"),
        ("lab05-skipped", r"1 code cell was not executed: In \[3\]"),
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


def test_cells_have_the_numbers_of_who_runs_the_notebook(course, ran):
    """papermill injects a cell of its own, which is In [2] for the kernel and in no reader's notebook."""
    executed = nbformat.read(course / "build/run/lab01-error.ipynb", as_version=4)
    code = [cell for cell in executed.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == [1, None, 2, 3]
    assert code[2].outputs[0].execution_count == 2
    said = [cell.source for cell in executed.cells if cell.cell_type == "markdown"]
    assert "In [3]" in said[0] and "In[3]" in "".join(code[3].outputs[0].traceback)
    page = (course / "build/run/lab01-error.html").read_text()
    assert "In [3]" in page and "In [4]" not in page


def test_a_piped_run_is_a_line_a_notebook_and_an_empty_log_is_none(course, ran):
    assert ran[0].stderr.count("\n") == 1 and "\r" not in ran[0].stderr  # no bar, and what failed
    assert len(re.findall(r"^(passed|failed)  ", ran[0].stdout, flags=re.M)) == 7
    # What the others left was about the kernel itself; here nbclient says how it died.
    assert [path.name for path in (course / "build/run").glob("*.log")] == ["lab03-killed.log"]


def test_a_bar_ends_where_the_notebooks_ended(course, ran, monkeypatch):
    bars = []

    class Bar(run.tqdm):
        def __init__(self, **options):
            super().__init__(**(options | {"disable": False, "file": StringIO()}))
            bars.append(self)

    monkeypatch.setattr(run, "tqdm", Bar)
    command(course, "--only", "lab02", "--output", "build/bar")
    assert (bars[0].n, bars[0].total) == (2, 3)


def test_pages_lead_to_the_report_and_to_their_neighbours(course, ran):
    page = (course / "build/run/lab01-error.html").read_text()
    links = re.findall(r'<a href="([^"]*)">', page[page.index("<nav") :])
    assert links[:3] == ["01-good.html", "../report/index.html", "lab02-exit.html"] == links[-3:]
    assert all((course / "build/run" / link).exists() for link in links[:3])
    assert "The instructor's version of a lab" in page
    assert "A lesson, executed" in (course / "build/run/01-good.html").read_text()


def test_pages_follow_each_other_as_they_are_read():
    names = ["01-a", "02-b", "lab01-c", "lab02-d", "lab04-e"]
    assert report.in_turn(names) == ["01-a", "lab01-c", "02-b", "lab02-d", "lab04-e"]


@pytest.mark.parametrize("only", [["01", "lab05"], ["01,lab05"], ["01, lab05-skipped"], ["01", "--only", "lab05"]])
def test_several_notebooks_are_named_with_spaces_or_commas(course, only):
    chosen = run.arguments(["--only", *only]).only
    assert [notebook.name for notebook in run.find(course, "solutions", chosen)] == ["01-good", "lab05-skipped"]


def check_cell(name: str, source: str):
    graded = {"grade_id": name, "grade": True, "solution": False, "locked": True, "points": 1, "cell_type": "code"}
    return nbformat.v4.new_code_cell(source, metadata={"nbgrader": {**graded, "schema_version": 3, "task": False}})


def test_a_students_lab_says_what_is_not_written_and_looks_at_the_rest(tmp_path):
    path = tmp_path / "labs" / "lab01-count" / "lab01-count.ipynb"
    write(path, "def one(x):\n    raise NotImplementedError()", "def two(x):\n    return 3", "one(1)")
    notebook = nbformat.read(path, as_version=4)
    head = "from minigpt.checks.calling import call\nfrom minigpt.checks import score, part, Wrong\n"
    wrong = "def right(f):\n    if call(f, 1) != 2:\n        raise Wrong('id', 'two(1) is 2')\n"
    checks = [check_cell("check-one", head + "score('one', part(1, lambda f: call(f, 1), one))")]
    checks += [check_cell("check-two", head + wrong + "score('two', part(1, right, two))")]
    checks += [check_cell("check-three", head + "score('three', part(1, lambda f: call(f, 1), two))")]
    notebook.cells += checks
    nbformat.write(notebook, path)
    answer = command(tmp_path, "--source", "labs")
    assert answer.returncode == 1
    said = [line.strip() for line in answer.stdout.splitlines() if line.startswith("    ")]
    assert said == [
        "not written yet: one",
        "In [6], check-two: Wrong: two(1) is 2",
        "what builds on them failed, too: In [4]",
    ]
    page = (tmp_path / "build/run-labs/lab01-count.html").read_text()
    assert "A student's version of a lab" in page and "Passed: three" in page


def test_parameters_reach_the_notebook(course, ran):
    outputs = nbformat.read(course / "build/run/01-good.ipynb", as_version=4).cells[-1].outputs
    assert outputs[0].text.splitlines()[-1] == f"7 {course / 'build/run/readings'}"


def test_a_dry_run_lists_what_a_cpu_could_not_do(course, ran):
    if "On the CPU" not in ran[0].stdout:
        pytest.skip("this machine has a GPU, so nothing is left out")
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


def test_interrupt_ends_the_notebooks_and_keeps_the_rest(course, ran, tmp_path):
    write(tmp_path / "lessons" / "01-quick.ipynb", "1 + 1")
    slow = "import os, time\nopen('pid', 'w').write(str(os.getpid()))\ntime.sleep(90)"
    for name in ("02-slow", "03-slow"):
        write(tmp_path / "lessons" / f"{name}.ipynb", slow)
    line = [sys.executable, "-m", "tools.run", "--root", str(tmp_path), "--at-once", "2"]
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)  # background jobs ignore it, and so would this
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    signal.signal(signal.SIGINT, before)
    run_folder = tmp_path / "build" / "run"
    written = [run_folder / "work" / name / "pid" for name in ("02-slow", "03-slow")] + [run_folder / "results.json"]
    deadline = time.monotonic() + 60
    while not all(path.exists() and path.read_text() for path in written) and time.monotonic() < deadline:
        time.sleep(0.1)
    kernels = [int(path.read_text()) for path in written[:2]]
    process.send_signal(signal.SIGINT)
    _, complaint = process.communicate(timeout=90)
    assert process.returncode == 130 and "--resume" in complaint and "Traceback" not in complaint
    assert not any(map(supervise.psutil.pid_exists, kernels))
    kept = json.loads((run_folder / "results.json").read_text())["notebooks"]
    assert [(entry["name"], entry["status"]) for entry in kept] == [("01-quick", "passed")]


def test_what_is_timed_runs_alone(tmp_path):
    """Each notebook notes when it begins and ends: two at a time share it with another, and no other with the third."""
    note = "import time\nbegan = time.time()\ntime.sleep(2)\nopen('when', 'w').write(f'{began} {time.time()}')"
    for name, budget in (("01-alone", BUDGET | {"alone": True}), ("02-a", BUDGET), ("03-b", BUDGET)):
        write(tmp_path / "lessons" / f"{name}.ipynb", note, budget=budget)
    assert command(tmp_path, "--at-once", "2").returncode == 0
    folder = tmp_path / "build" / "run" / "work"
    when = {path.parent.name: [float(t) for t in path.read_text().split()] for path in folder.glob("*/when")}
    (began, _), (first, first_end), (second, second_end) = (when[name] for name in ("01-alone", "02-a", "03-b"))
    assert max(first, second) < min(first_end, second_end)
    assert began > max(first_end, second_end)
    names = [entry["name"] for entry in json.loads((tmp_path / "build/run/results.json").read_text())["notebooks"]]
    assert names == ["01-alone", "02-a", "03-b"]


def test_a_kernel_does_what_is_to_be_done_at_its_end_and_takes_nothing_apart(tmp_path):
    note = "import sys\nclass Note:\n    def __del__(self, open=open): open('apart', 'w').close()\nsys.kept = Note()"
    end = "import atexit, tempfile\natexit.register(lambda: open('ends', 'a').write('1'))"
    end += "\nfolder = tempfile.TemporaryDirectory(dir='.', prefix='scratch')"
    write(tmp_path / "lessons" / "01-ends.ipynb", note, end)
    assert command(tmp_path).returncode == 0
    folder = tmp_path / "build" / "run" / "work" / "01-ends"
    assert [path.name for path in folder.iterdir()] == ["ends"] and (folder / "ends").read_text() == "1"


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
        (["--only", "01,lab77"], "--only is 'lab77'; there is 01-good, lab01-error"),
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
