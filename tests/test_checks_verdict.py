"""What a cell's parts come to: one line, points, or verdicts that have an id."""

from __future__ import annotations

import ast
import re

import nbclient
import nbformat
import papermill
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from minigpt import checks
from minigpt.checks import Wrong
from tests.judged import refuses
from tools import ROOT
from tools.bank_entries import ID


def says(*ids: str, points: float = 1, **options):
    """A part whose check raises a verdict with each of these ids in turn."""

    def check(case=None):
        if case:
            raise Wrong(case, f"{case} is wrong")

    return checks.part(points, check, each=ids, **options)


def test_all_parts_right_is_one_line_and_no_value(capsys):
    assert checks.score("all is right", says(points=2), says()) is None
    assert capsys.readouterr().out == "Passed: all is right\n"


def test_some_parts_right_is_a_number_that_nbgrader_takes(capsys):
    points = checks.score("all is right", says(points=2), says("late"), says("late", "never"), says(points=0.5))
    assert isinstance(points, float) and repr(points) == "2.5"
    assert points.verdict.ids == {"late"} and str(points.verdict) == "late is wrong"  # said once
    assert capsys.readouterr().out == "2.5 of 4.5 points\nlate is wrong\n"


def test_no_part_right_is_the_verdict_alone(capsys):
    with refuses("a+b+c", "^a\\+b is wrong\nc is wrong$"):
        checks.score("all is right", says("a+b"), says("c"))
    assert capsys.readouterr().out == ""


def test_a_part_that_builds_on_another_counts_after_it_only():
    first, second = says("first"), says()
    with refuses("first"):
        checks.score("", first, says(after=first), says("unseen", after=(second, first)))
    assert checks.score("", second, says(after=second), says("third", after=second)) == 2


def test_a_verdict_is_a_sentence_and_no_traceback():
    assert Wrong("id", "the head is counted twice")._render_traceback_() == ["Wrong: the head is counted twice"]


def test_a_long_verdict_is_wrapped_and_code_is_not():
    long = "the head is counted twice, " * 8
    lines = Wrong("id", f"{long}\n    line 3 of the answer's cell: {'x' * 120}")._render_traceback_()
    assert all(len(line) <= 83 for line in lines[:-1]) and len(lines) == 4
    assert lines[-1] == f"    line 3 of the answer's cell: {'x' * 120}"
    assert lines[1].startswith("  twice, the head")
    assert " ".join(line.strip() for line in lines[:-1]) == f"Wrong: {long}".strip()


def test_a_verdict_says_first_which_earlier_part_is_wrong():
    needs = {"part 1": says("layer", points=0)}
    with refuses("earlier-part+late", "^part 1 has not passed yet: layer is wrong\nThis may .*\nlate is wrong$"):
        checks.score("all is right", says("late"), needs=lambda: {"part 0": says(points=0), **needs})
    points = checks.score("all is right", says(points=2), says("late"), needs=lambda: needs)
    assert points == 2 and points.verdict.ids == {"earlier-part", "late"}  # and no point less


def test_an_earlier_part_that_passes_or_is_not_asked_is_not_named(capsys):
    with refuses("late", "^late is wrong$"):
        checks.score("all is right", says("late"), needs=lambda: {"part 1": says(points=0)})
    assert checks.score("all is right", says(), needs=lambda: 1 / 0) is None  # a right answer asks for nothing


def test_the_check_of_a_run_ends_in_a_verdict_whatever_it_meets(capsys):
    needs = {"part 1": says("layer", points=0)}
    with checks.judging("all is right", lambda: needs):
        assert True
    assert capsys.readouterr().out == "Passed: all is right\n"
    with refuses("earlier-part+required", "^part 1 has not passed yet: layer is wrong\n.*\nrun all cells$"):
        with checks.judging("all is right", lambda: needs):
            raise AssertionError("run all cells")
    with refuses("required", "^something that the check asserts"), checks.judging("all is right"):
        raise AssertionError
    with refuses("twice", "^n: "), checks.judging("all is right", lambda: {"part 1": says(points=0)}):
        checks.close(4.0, 2.0, "n")
    with refuses("not-run", "there is no models yet: run all cells above"), checks.judging("all is right"):
        models  # noqa: B018, F821
    with pytest.raises(ZeroDivisionError), checks.judging("all is right"):
        raise ZeroDivisionError
    assert not capsys.readouterr().out


def test_an_error_of_the_checks_is_no_verdict():
    with pytest.raises(ZeroDivisionError):
        checks.score("", says(), checks.part(1, lambda: 1 / 0))


def test_every_id_is_in_kebab_case_and_every_verdict_has_one():
    for path in (ROOT / "minigpt" / "checks").rglob("*.py"):
        for call in (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)):
            if isinstance(call.func, ast.Name) and call.func.id == "Wrong":
                assert len(call.args) == 2, (path.name, call.lineno)
                id = getattr(call.args[0], "value", None)
                assert not isinstance(id, str) or re.fullmatch(ID, id), (path.name, id)


@pytest.mark.slow
def test_a_notebook_shows_the_sentence_and_no_traceback(tmp_path):
    """As ipykernel renders it: JupyterLab shows that, papermill and nbconvert raise it, nbgrader prints it."""
    code = (
        'from minigpt import checks\ncheck = lambda: checks.integer(3, 4, "n")\nchecks.score("", checks.part(1, check))'
    )
    nbformat.write(new_notebook(cells=[new_code_cell(code)]), tmp_path / "wrong.ipynb")
    with pytest.raises(papermill.PapermillExecutionError) as caught:
        papermill.execute_notebook(
            tmp_path / "wrong.ipynb", tmp_path / "out.ipynb", kernel_name="python3", progress_bar=False, cwd=ROOT
        )
    sentence = "n: 1 too few (yours 3, right 4)"
    assert str(caught.value).strip().endswith(f"Wrong: {sentence}") and "verdict.py" not in str(caught.value)
    (output,) = nbformat.read(tmp_path / "out.ipynb", 4).cells[-1].outputs
    assert (output.ename, output.evalue, output.traceback) == ("Wrong", sentence, [f"Wrong: {sentence}"])


def test_a_mistake_that_one_part_has_named_is_not_told_again(capsys):
    def part(n, id):
        def check():
            raise Wrong(id, f"case {n}: {id}")

        return checks.part(1, check)

    with refuses("twice+late", "^case 1: twice.late\n2 other cases are wrong in the same way.$"):
        checks.score("", part(1, "twice+late"), part(2, "late"), part(3, "twice"))
    with refuses("raises-keyerror", "^case 1: raises-keyerror\ncase 2: raises-keyerror$"):  # each has a line of its own
        checks.score("", part(1, "raises-keyerror"), part(2, "raises-keyerror"))


CELL = "from minigpt import checks\n@checks.check\ndef check_it({}):\n    "
RUN_TOO_EARLY = {  # a cell, and what it shows where count_minigpt is not defined; None: as Python shows it
    CELL.format("count_minigpt") + "1 / 0":
        "Wrong: there is no count_minigpt yet: run the cells above this one, in order",
    CELL.format("*, count_minigpt") + "checks.score('', checks.part(1, checks.call, count_minigpt))":
        "Wrong: there is no count_minigpt yet: run the cells above this one, in order",
    "count_minigpt(3)": None,
    CELL.format("") + "raise KeyboardInterrupt": "Wrong: the check was stopped before it had judged the answer",
}  # fmt: skip


@pytest.mark.slow
def test_a_check_that_runs_before_the_answer_says_so_without_a_traceback():
    notebook = new_notebook(cells=[new_code_cell(code) for code in RUN_TOO_EARLY])
    nbclient.NotebookClient(
        notebook, kernel_name="python3", allow_errors=True, resources={"metadata": {"path": str(ROOT)}}
    ).execute()
    for cell, says in zip(notebook.cells, RUN_TOO_EARLY.values()):
        (error,) = [output for output in cell.outputs if output.output_type == "error"]
        if says:
            assert error.traceback == [says] and says.endswith(error.evalue), error
        else:
            assert error.ename == "NameError" and "count_minigpt" in "".join(error.traceback[1:]), error
