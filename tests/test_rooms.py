"""Who may know whom: the two wings of the memory package stay apart, the package stays apart from the tools, and no
modules know each other in a circle."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter

import pytest

from tools import ROOT


def imports_of(tree: ast.AST) -> set[str]:
    """What a file imports, at the top or inside a function: "module.name" for each name taken from a module."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{name.name}" for name in node.names}
        elif isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
    return found


def trees(folder: str) -> dict[str, ast.Module]:
    """The files of a folder, parsed, by the names of their modules."""
    found = {}
    for path in sorted((ROOT / folder).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts).removesuffix(".__init__")] = ast.parse(path.read_text(encoding="utf8"))
    return found


def imported(folder: str) -> set[str]:
    return set().union(*map(imports_of, trees(folder).values()))


@pytest.mark.parametrize(
    ("room", "stranger"),
    [
        ("minigpt/memory/measured", "minigpt.memory.predicted"),  # or it would prove nothing
        ("minigpt/memory/predicted", "minigpt.memory.measured"),
        ("minigpt/memory/predicted", "torch"),
        ("minigpt/memory/engine", "torch"),
        ("minigpt/memory/families", "torch"),
        ("minigpt/memory/families", "minigpt.lora"),  # which counts with the families' shapes
        ("minigpt/lora", "minigpt.memory.measured"),  # which measures models with adapters
        ("minigpt", "tools"),  # which are not installed
    ],
)
def test_a_room_does_not_import(room, stranger):
    modules = imported(room)
    assert len(modules) > 3, f"{room} imports almost nothing: is it still there?"
    assert {module for module in modules if f"{module}.".startswith(f"{stranger}.")} == set()


def test_no_modules_import_each_other_in_a_circle():
    """Also not inside functions; what only a type checker reads may. Families, which a table names, are not seen."""
    modules = trees("minigpt")
    graph: dict[str, set[str]] = {}
    for module, tree in modules.items():
        tree.body = [node for node in tree.body if getattr(getattr(node, "test", None), "id", "") != "TYPE_CHECKING"]
        found = {name if name in modules else name.rpartition(".")[0] for name in imports_of(tree)}
        graph[module] = found & modules.keys() - {module}
    assert graph["minigpt.memory.measured.building"] > {"minigpt.memory.measured.adapters"}
    assert set(TopologicalSorter(graph).static_order()) == modules.keys()  # CycleError names the circle
