"""What of a package is reached from a few of its names: modules, and the functions and classes in them.

A definition reaches the names that stand in it, followed through imports. What runs when a module is imported (bases,
defaults, tables, a class's own lines) is reached as soon as anything of the module is. An import alone reaches nothing.

Left out: names that are put together while the program runs.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path

FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)


class Package:
    """The package ``minigpt`` below ``root``. What modules in ``stops`` name is not followed."""

    def __init__(self, root: Path, stops: Iterable[str] = ()) -> None:
        self.root, self.stops = root, set(stops)
        self.modules: dict[str, Module] = {}
        self._reached: set[tuple[str, str]] = set()
        self.reach("minigpt")

    def path(self, module: str) -> Path:
        base = self.root.joinpath(*module.split("."))
        return base / "__init__.py" if base.is_dir() else base.with_suffix(".py")

    def reached(self, module: str) -> set[str]:
        """The qualified names of functions that are reached in it; of a class that is reached, all its methods."""
        named = {name for where, name in self._reached if where == module}
        return named | {m for m in self.modules[module].methods if m.split(".")[0] in named} if named else named

    def reach_all(self, module: str) -> None:
        """Everything in a module, if there is such a module."""
        self.reach(module)
        for name in self.modules[module].definitions if module in self.modules else ():
            self.reach(module, name)

    def reach(self, name: str, part: str = "") -> None:
        """``part`` of the module ``name``, or what importing it runs alone. What is not there is left alone."""
        if (name, part) in self._reached or not self.path(name).exists():
            return
        self._reached.add((name, part))
        if name not in self.modules:
            self.modules[name] = Module(self.path(name), name)
            if name not in self.stops:
                self._follow(self.modules[name], *runs_on_import(self.modules[name].tree.body))
            parent = name.rpartition(".")[0]
            if parent in ("minigpt.checks", "minigpt.checks.probes"):  # the others' own files may be stand-ins
                self.reach(parent)
        if name in self.stops:
            return
        module = self.modules[name]
        if part in module.definitions:
            self._follow(module, module.definitions[part])
        elif part in module.imports:
            self._reach_target(*module.imports[part])
        elif part:
            self.reach(f"{name}.{part}")

    def reach_from_notebook(self, setup: str, answers: str) -> None:
        """What answers use, and what set-up cells use as they run: only run cells call the functions in them."""
        known = imports_of(ast.parse(setup)) | imports_of(ast.parse(answers))
        for node in (*runs_on_import(ast.parse(setup).body), ast.parse(answers)):
            self._follow_names(known, node)

    def home(self, module: str, name: str) -> str:
        """The module in which what ``module`` calls ``name`` is defined."""
        if not self.path(module).exists():
            return module
        imports = Module(self.path(module), module).imports
        return self.home(*imports[name]) if name in imports else module

    def _follow(self, module: Module, *nodes: ast.AST) -> None:
        for node in nodes:
            self._follow_names(module.imports | imports_of(node), node)
            for each in ast.walk(node):
                if isinstance(each, ast.Name) and each.id in module.definitions:
                    self.reach(module.name, each.id)

    def _follow_names(self, known: dict[str, tuple[str, str]], node: ast.AST) -> None:
        for each in ast.walk(node):
            if isinstance(each, ast.Attribute) and isinstance(each.value, ast.Name) and each.value.id in known:
                self.reach(".".join(filter(None, known[each.value.id])), each.attr)
            if isinstance(each, ast.Name) and each.id in known:
                self._reach_target(*known[each.id])

    def _reach_target(self, module: str, name: str) -> None:
        self.reach(module, name)
        if name:
            self.reach(f"{module}.{name}")


class Module:
    """The syntax of one file."""

    def __init__(self, path: Path, name: str) -> None:
        self.name, self.text = name, path.read_text(encoding="utf8")
        self.tree = ast.parse(self.text)

    @cached_property
    def definitions(self) -> dict[str, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
        return {node.name: node for node in self.tree.body if isinstance(node, (*FUNCTION, ast.ClassDef))}

    @cached_property
    def imports(self) -> dict[str, tuple[str, str]]:
        """What the names stand for that it imports from the package, outside its functions."""
        body = [node for node in self.tree.body if not isinstance(node, FUNCTION)]
        return imports_of(ast.Module(body, []))

    @property
    def methods(self) -> list[str]:
        """The methods of its classes, by their qualified names."""
        classes = [node for node in self.definitions.values() if isinstance(node, ast.ClassDef)]
        return [f"{node.name}.{each.name}" for node in classes for each in node.body if isinstance(each, FUNCTION)]


def runs_on_import(body: list[ast.stmt]) -> Iterator[ast.AST]:
    for node in body:
        if isinstance(node, FUNCTION):
            yield from [*node.decorator_list, *node.args.defaults, *filter(None, node.args.kw_defaults)]
        elif isinstance(node, ast.ClassDef):
            yield from [*node.decorator_list, *node.bases, *(each.value for each in node.keywords)]
            yield from runs_on_import(node.body)
        elif not isinstance(node, (ast.Import, ast.ImportFrom)) and "__name__ ==" not in ast.unparse(node)[:30]:
            yield node


def imports_of(tree: ast.AST) -> dict[str, tuple[str, str]]:
    """{name: (module, name in it, or "" for the module itself)} of all imports of the package in a tree."""
    found: dict[str, tuple[str, str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "minigpt":
            found |= {alias.asname or alias.name: (node.module or "", alias.name) for alias in node.names}
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "minigpt":
                    found[alias.asname or "minigpt"] = (alias.name if alias.asname else "minigpt", "")
    return found
