"""Who may know whom: the two wings of the memory package stay apart, and the package stays apart from the tools."""

from __future__ import annotations

import ast

import pytest

from tools import ROOT


def imported(folder: str) -> set[str]:
    """The modules that the files of a folder import, at the top or inside a function."""
    found = set()
    for path in sorted((ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf8"))):
            if isinstance(node, ast.ImportFrom):
                found |= {f"{node.module}.{name.name}" for name in node.names}
            elif isinstance(node, ast.Import):
                found |= {name.name for name in node.names}
    return found


@pytest.mark.parametrize(
    ("room", "stranger"),
    [
        ("minigpt/memory/measured", "minigpt.memory.predicted"),  # or it would prove nothing
        ("minigpt/memory/predicted", "minigpt.memory.measured"),
        ("minigpt/memory/predicted", "torch"),
        ("minigpt/memory/engine", "torch"),
        ("minigpt/memory/families", "torch"),
        ("minigpt", "tools"),  # which are not installed
    ],
)
def test_a_room_does_not_import(room, stranger):
    modules = imported(room)
    assert len(modules) > 3, f"{room} imports almost nothing: is it still there?"
    assert {module for module in modules if f"{module}.".startswith(f"{stranger}.")} == set()
