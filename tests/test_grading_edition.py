"""The closed edition of each lab: the course's own answers run in it, and nothing in it knows what they are asked.

The oracles are the labs' banks, whose answers that ask somebody must get the verdict that they get in a notebook; and
the syntax trees of all functions that register themselves as truths.
"""

import ast
import inspect
import json
import os
import pickle
import re
import subprocess
import sys
import textwrap
from importlib import import_module
from pkgutil import resolve_name

import pytest

from minigpt.checks import closing
from tools import ROOT
from tools.bank import banks
from tools.bank_entries import read_bank
from tools.bank_lab import Lab
from tools.grading import edition
from tools.grading.reaching import Package
from tools.grading.truths import known

LABS = [path.stem for path in banks()]
STAY = {  # truths that are there all the same, for the course's own answers are built of them; torch's own
    "lab05-activations": {"torch.utils.checkpoint:checkpoint"},
    "lab09-qlora": {  # its assemble is made of inject and quantize_model
        "minigpt.lora.injection:inject", "minigpt.lora.layer:LoRALinear.forward", "minigpt.lora.layer:check_options",
        "minigpt.lora.layer:shapes",
        "minigpt.nf4:dequantize", "minigpt.nf4:quantize", "minigpt.optim.blockwise:dequantize",
        "minigpt.optim.blockwise:dynamic_map",
        "minigpt.optim.blockwise:quantize", "minigpt.scales:dequantize_statistics",
        "minigpt.scales:quantize_statistics",
    },
}  # fmt: skip
NOT_OURS = {"asks-torch"}  # torch is there, and refuses while the book is closed, if at all
OPTIMIZERS_OF_TORCH = {"asks torch", "asks torch's function"}


@pytest.fixture(scope="module", params=LABS)
def lab(request) -> Lab:
    return Lab(ROOT / "content" / "labs" / f"{request.param}.md")


@pytest.fixture(scope="module")
def folder(lab, tmp_path_factory):
    folder = tmp_path_factory.mktemp("edition") / lab.name
    edition.write(folder, ROOT / "solutions" / lab.name / f"{lab.name}.ipynb")
    return folder


def asking(lab: Lab, monkeypatch) -> list[tuple]:
    """(title, code, name of the function, pickled arguments of its first call) of what a bank calls asking."""
    first: dict[tuple[str, str], bytes] = {}
    exercise, call = "", closing.call

    def record(function, *args, **options):
        name = getattr(function, "__name__", "")
        own = getattr(function, "__module__", "") == "__main__"  # and no probe's, which may have the same name
        if own and (exercise, name) not in first:
            try:
                first[exercise, name] = pickle.dumps((bare(args), options))
            except Exception:  # a function of the judge's own, which another process cannot have
                pass
        return call(function, *args, **options)

    entries = read_bank(ROOT / "content" / "labs" / f"{lab.name}.bank.py", lab.answers)
    entries = [e for e in entries if any(id.startswith("asks-") for id in e.verdict - NOT_OURS)]
    for module in [module for name, module in sys.modules.items() if name.startswith("minigpt.checks")]:
        if getattr(module, "call", None) is call:
            monkeypatch.setattr(module, "call", record)
    for exercise in dict.fromkeys(entry.exercise for entry in entries):
        lab.run(exercise, lab.answers[exercise])
    found = []
    for e in entries:
        for name in re.findall(r"^def (\w+)", e.code, re.MULTILINE):
            if (e.exercise, name) in first and e.title not in OPTIMIZERS_OF_TORCH:
                found.append((f"{e.exercise}: {e.title}", e.code, name, first[e.exercise, name], set(e.verdict)))
    return found


def bare(value):
    """Named tuples of a judge's own as plain ones: a judge's classes are not there."""
    if isinstance(value, (list, tuple)):
        return (tuple if isinstance(value, tuple) else list)(bare(each) for each in value)
    return value


def run_in(folder, tmp_path, cells: list[str], asks: list[tuple]) -> dict:
    told = tmp_path / "told"
    told.write_bytes(pickle.dumps({"cells": cells, "asks": asks}))
    script = tmp_path / "in_edition.py"
    script.write_text((ROOT / "tests" / "in_edition.py").read_text())
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(folder), "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, str(script), str(told)], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_the_courses_answers_run_in_it_and_what_a_bank_calls_asking_refuses(lab, folder, tmp_path, monkeypatch):
    asks = asking(lab, monkeypatch)
    cells = [c.source for c in lab.cells if c.cell_type == "code" and (
        {"setup", "parameters"} & set(c.metadata.get("tags", [])) or c.metadata.get("nbgrader", {}).get("solution")
    )]  # fmt: skip
    said = run_in(folder, tmp_path, cells, [ask[:4] for ask in asks])
    assert said["from"].startswith(str(folder))
    verdicts = {title: verdict for title, *_, verdict in asks}
    assert {t: id for t, id in said["ids"].items() if not set(id.split("+")) & verdicts[t]} == {}
    assert asks or lab.name == "lab11-allocator"


def shapes(source: str) -> set[str]:
    """The bodies of all functions in it, as dumped trees, without what says nothing: a docstring, pass."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            body = [each for each in node.body if not isinstance(each, (ast.Pass, ast.Expr))]
            found.add("".join(map(ast.dump, body)))
    return found - {""}


def test_no_source_of_a_truth_is_in_it(lab, folder):
    checks = [c.source for c in lab.cells if c.cell_type == "code" and c.metadata.get("nbgrader", {}).get("grade")]
    truths = [(m, name) for m, name in known(checks).truths if f"{m}:{name}" not in STAY.get(lab.name, ())]
    assert len(truths) > 20
    there = set().union(*(shapes(path.read_text()) for path in folder.rglob("*.py")))
    functions = {
        f"{m}:{name}": inspect.unwrap(resolve_name(f"{m}:{name}")) for m, name in truths if m.split(".")[0] == "minigpt"
    }
    for name, function in functions.items():
        if not name.endswith("<lambda>"):
            own = max(shapes(textwrap.dedent(inspect.getsource(function))), key=len, default="")
            assert len(own) < 200 or own not in there, name


def test_what_stays_is_listed(lab, folder):
    last = (folder / "minigpt" / "checks" / "closing.py").read_text().splitlines()[-1]
    assert set(re.findall(r"'([\w.:]+)'", last.partition("records=")[0])) == STAY.get(lab.name, set())


def test_models_are_not_in_lab_01(tmp_path):
    edition.write(tmp_path / "it", ROOT / "solutions" / "lab01-count" / "lab01-count.ipynb")
    text = (tmp_path / "it" / "minigpt" / "model.py").read_text()
    assert "scaled_dot_product" not in text and "class GPTConfig" in text
    memory = (tmp_path / "it" / "minigpt" / "memory" / "__init__.py").read_text()  # for answers that make a Ledger
    assert "import BUCKETS, Ledger" in memory and not (tmp_path / "it" / "minigpt" / "memory" / "predicted").exists()


def test_stand_ins_import_and_refuse(tmp_path):
    from tools.grading.stand_ins import Refuses, asks

    got = asks("minigpt.memory")("predict")
    with pytest.raises(closing.Wrong, match="asks the course's own arithmetic"):
        got(1)
    for use in (lambda: got.anything(), lambda: got[0], lambda: [*got], lambda: got + 1, lambda: isinstance(1, got)):
        with pytest.raises(closing.Wrong):
            use()
    assert isinstance(got, Refuses) and not hasattr(got, "__wrapped__")
    closing._asked.clear()


def test_what_is_reached():
    package = Package(ROOT)
    assert package.home("minigpt.memory", "Ledger") == "minigpt.memory.buckets"
    package.reach("minigpt.sample", "pick_device")
    assert "minigpt.sample" in package.modules and "minigpt.base" not in package.modules
    package.reach("minigpt.sample", "main")
    assert "minigpt.base" in package.modules
    assert import_module("minigpt.sample").pick_device  # it is still called so
