"""The closed edition: a copy of ``minigpt`` in which nothing knows the truths of one lab.

    write(folder, notebook)        the edition for a lab, from the instructor's version of its notebook
    cached(root, lab)              the folder of that edition, made where it is not there yet

The closed process (``minigpt.checks.answering``) has it first on its path. In it is what the lab's set-up and the
instructor's answers reach, what asks an answer, and the models that judges send. All else is a stand-in that imports
and refuses (``tools/grading/stand_ins.py``), and so are the packages that know it as well: peft, bitsandbytes, ....

What an instructor's answer reaches may be a truth of the same lab: the quantizing that lab 09 is built on is one in
its count of bytes. That stays, and refuses while the book is closed, as in a notebook.

Left out: what torch itself knows, and what is worked out while no answer runs.
"""

from __future__ import annotations

import ast
import compileall
import hashlib
import os
import shutil
import sys
import tempfile
from pathlib import Path
from py_compile import PycInvalidationMode

import nbformat
from IPython.core.inputtransformer2 import TransformerManager

from tools import ROOT
from tools.grading import stand_ins
from tools.grading.reaching import Package, imports_of
from tools.grading.truths import Known, known

SENT = ("minigpt.memory.buckets", "minigpt.memory.units")  # modules whose values are handed to and fro
MODELS = "minigpt.model"
REFUSAL = "from minigpt.stand_ins import refuse\nrefuse({name!r})"


def write(folder: Path, notebook: Path) -> None:
    """Write the edition for the lab of ``notebook``, from solutions/, into ``folder``, which is made.

    Raises ValueError where the lab's checks cannot be imported.
    """
    cells = [cell for cell in nbformat.read(notebook, as_version=4).cells if cell.cell_type == "code"]
    facts = known([cell.source for cell in cells if cell.metadata.get("nbgrader", {}).get("grade")])
    package = Package(ROOT, stops={"minigpt.checks.closing", "minigpt.checks"})
    for module in (*asking(), *SENT, *facts.probes):
        package.reach_all(module)
    unbuilt = not facts.probes  # models are sent to probes; who needs none may be asked what a model consists of
    package.reach(MODELS, "GPTConfig") if unbuilt else package.reach_all(MODELS)
    setup = [cell for cell in cells if {"setup", "parameters"} & set(cell.metadata.get("tags", []))]
    answers = [cell for cell in cells if cell.metadata.get("nbgrader", {}).get("solution")]
    texts = ["\n".join(plain(cell.source) for cell in part) for part in (setup, answers)]
    package.reach_from_notebook(*texts)
    for module, name in imports_of(ast.parse(texts[0])).values():  # a right answer may make what is handed to and fro
        if package.home(module, name) in SENT:
            package.reach(module, name)
    for module, text in sorted(package.modules.items()):
        source = text.text
        removed = sorted(facts.of(module) - package.reached(module))
        if module == MODELS and unbuilt:
            removed += [name for name in functions(text.tree) if not name.startswith("GPTConfig.")]
        target = folder / package.path(module).relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(without(source, module, removed) if removed else source, encoding="utf8")
    finish(folder, facts, package)


def asking() -> list[str]:
    """The modules that ask an answer, and know nothing themselves: they lie right in minigpt/checks."""
    there = sorted((ROOT / "minigpt" / "checks").glob("[!_]*.py"))
    return [f"minigpt.checks.{path.stem}" for path in there if "\nknows(" not in path.read_text(encoding="utf8")]


def finish(folder: Path, facts: Known, package: Package) -> None:
    """The stand-ins, the stubs of packages, and what refuses while the book is closed."""
    shutil.copy(stand_ins.__file__, folder / "minigpt" / "stand_ins.py")
    for name in stand_ins.PACKAGES:
        (folder / name).mkdir()
        stub = f"from minigpt import stand_ins\n\n__getattr__ = stand_ins.asks({name!r})\n"
        (folder / name / "__init__.py").write_text(stub, encoding="utf8")
    with open(folder / "minigpt" / "__init__.py", "a", encoding="utf8") as file:
        file.write("\nfrom minigpt import stand_ins\n\nstand_ins.install()\n")
    stay = [f"{module}:{name}" for module, name in facts.truths if stays(module, name, package)]
    records = [f"{module}:{name}" for module, name in facts.records if stays(module, name, package)]
    lines = ["", "", "from pkgutil import resolve_name", ""]
    lines += [f"knows(*map(resolve_name, {stay!r}), records=map(resolve_name, {records!r}))", ""]
    with open(folder / "minigpt" / "checks" / "closing.py", "a", encoding="utf8") as file:
        file.write("\n".join(lines))


def stays(module: str, name: str, package: Package) -> bool:
    """Whether this truth is there all the same: a lab's own answers need it, or it is torch's."""
    top = module.split(".")[0]
    if top == "minigpt":
        return module in package.modules and name in package.reached(module)
    return top not in stand_ins.PACKAGES


def plain(source: str) -> str:
    return TransformerManager().transform_cell(source)


def without(source: str, module: str, names: list[str]) -> str:
    """``source``, in which these functions, by their qualified names, refuse."""
    lines = source.splitlines(keepends=True)
    for name, node in sorted(functions(ast.parse(source)).items(), key=lambda pair: -pair[1].lineno):
        if name in names:
            first, indent = node.body[0], " " * (node.col_offset + 4)
            refusal = REFUSAL.format(name=f"{module}.{name.split('.')[0]}").splitlines()
            if first.lineno == node.lineno:  # def f(): ...
                head = lines[first.lineno - 1].encode()[: first.col_offset].decode().rstrip() + "\n"
            else:
                head = ""
            lines[first.lineno - 1 : node.end_lineno] = [head, *(f"{indent}{line}\n" for line in refusal)]
    return "".join(lines)


def functions(tree: ast.Module) -> dict[str, ast.FunctionDef | ast.AsyncFunctionDef]:
    """By qualified name: those of the module, and the methods of its classes."""
    found = {}
    for node in tree.body:
        for each in node.body if isinstance(node, ast.ClassDef) else [node]:
            if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef)):
                found[each.name if each is node else f"{node.name}.{each.name}"] = each  # type: ignore[attr-defined]
    return found


def cached(root: Path, lab: str) -> Path:
    """The folder of the edition for ``lab`` of the course at ``root``, under build/; one for each version of both."""
    notebook = root / "solutions" / lab / f"{lab}.ipynb"
    digest = hashlib.sha256(sys.version.encode() + notebook.read_bytes())
    for path in sorted([*(ROOT / "minigpt").rglob("*.py"), *(ROOT / "tools" / "grading").glob("*.py")]):
        digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    folder = root / "build" / "grading" / "editions" / f"{lab}-{digest.hexdigest()[:16]}"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as made:
            write(Path(made) / "edition", notebook)
            compileall.compile_dir(
                Path(made) / "edition", quiet=2, stripdir=made, invalidation_mode=PycInvalidationMode.UNCHECKED_HASH
            )  # each submission would do it again: a box can only read it
            try:
                os.replace(Path(made) / "edition", folder)
            except OSError:  # another process has made the same meanwhile
                if not folder.exists():
                    raise
    return folder
