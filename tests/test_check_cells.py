"""Check cells of the labs: they read the answers that they name, import the rest, and leave nothing behind."""

from __future__ import annotations

import ast
import builtins
import symtable

import pytest
from IPython.core.inputtransformer2 import TransformerManager

from minigpt import checks
from tools import ROOT, bank
from tools.bank_lab import Lab, Outcome

SETUP = {"parameters", "setup"}
HELPERS = {  # names that students give to things of their own
    "count", "shape", "base", "cases", "config", "parameters", "right", "wrong", "truth", "expected", "answer", "model",
    "total", "values", "sizes", "result", "x", "n", "i", "lengths", "plan", "name", "mine", "layer", "weight",
}  # fmt: skip


@pytest.fixture(scope="module", params=bank.banks(), ids=lambda path: path.stem)
def lab(request) -> Lab:
    return Lab(ROOT / request.param)


def bound(source: str) -> set[str]:
    """The names that a cell gives a value."""
    table = symtable.symtable(TransformerManager().transform_cell(source), "cell", "exec")
    return {one.get_name() for one in table.get_symbols() if one.is_assigned() or one.is_imported()}


def looked_up(table: symtable.SymbolTable) -> set[str]:
    """The names that are looked up in the notebook from this table, a function's, and from those inside it."""
    names = {one.get_name() for one in table.get_symbols() if one.is_global()}
    return names.union(*[looked_up(inside) for inside in table.get_children()])


def test_a_check_reads_answers_and_imports_and_the_check_of_a_run_the_setup_too(lab):
    setup, made, under = set(), set(), None
    for cell in lab.cells:
        kind = cell.metadata.get("nbgrader", {})
        if cell.cell_type != "code":
            continue
        if not kind.get("grade"):
            under = cell.id if kind.get("solution") else under
            is_setup = SETUP & {*cell.metadata.get("tags", [])}
            (setup if is_setup else made).update(bound(cell.source))
            continue
        (function,) = symtable.symtable(cell.source, "check", "exec").get_children()
        answers = ast.parse(cell.source).body[-1].args
        free = looked_up(function) - {*dir(builtins), "checks"}
        assert free <= (set() if under else setup), (cell.id, free)
        missing = {one.arg for one in [*answers.args, *answers.kwonlyargs]} - made
        assert not missing, f"{cell.id} asks for {missing}, which no cell above makes"
        under = None


def test_a_check_leaves_its_name_alone(lab, monkeypatch):
    monkeypatch.setattr(checks, "check", lambda judge: judge)
    for cell in lab.cells:
        if cell.metadata.get("nbgrader", {}).get("grade") and cell.cell_type == "code":
            namespace: dict = {}
            exec(cell.source, namespace)
            assert set(namespace) == {"__builtins__", "checks", cell.id.replace("-", "_")}


def test_no_cell_uses_what_a_check_cell_leaves(lab):
    """Nor the module ``checks``, which a check cell imports at its top."""
    for cell in lab.cells:
        if cell.cell_type == "code" and not cell.metadata.get("nbgrader", {}).get("grade"):
            table = symtable.symtable(TransformerManager().transform_cell(cell.source), "cell", "exec")
            used = looked_up(table) | {one.get_name() for one in table.get_symbols() if one.is_referenced()}
            assert not used & {"checks", *(name.replace("-", "_") for name in lab.check_names.values())}, cell.source


@pytest.mark.slow
def test_no_helper_of_a_student_is_in_the_way(lab):
    """Of any name that a check has inside it, or that is likely; made before the answer or after it."""
    answered: set[str] = set()
    used = set().union(*[looked_up(symtable.symtable(code, "answer", "exec")) for code in lab.answers.values()])
    for exercise, answer in lab.answers.items():
        (judge,) = [node for node in ast.parse(lab.checks[exercise]).body if isinstance(node, ast.FunctionDef)]
        asked = {one.arg for one in [*judge.args.args, *judge.args.kwonlyargs]}
        inside = {node.id for node in ast.walk(judge) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        inside |= {
            (a.asname or a.name) for node in ast.walk(judge) if isinstance(node, ast.ImportFrom) for a in node.names
        }
        answered |= bound(answer)
        own = "\n".join(f"{name} = 'mine'" for name in sorted((HELPERS | inside) - asked - answered - used | {"cases"}))
        assert lab.run(exercise, f"{own}\n{answer}\n{own}") == Outcome(lab.points[exercise]), exercise
