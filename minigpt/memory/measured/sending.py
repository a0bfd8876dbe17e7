"""The text of functions that were typed into a notebook, for processes that cannot import them.

    source_of([zero1_step])     the definitions of their cells, and of all cells and imports that these use
    names_of(source)            there: what that text defines, by name

Of a cell come definitions, imports and plain values: what else stands there is not run again.

Left out: values that a cell has computed.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

FILE = "<the notebook>"
ALWAYS = ("import math", "import torch", "import torch.nn.functional as F", "from torch import Tensor, nn")


def source_of(functions: Iterable[Callable]) -> str:
    """Raises ValueError for what is no function or class of a cell, or of a module's text."""
    imports, cells = dict.fromkeys(ALWAYS), dict[str, None]()
    asked = list(functions)
    waiting, seen = list(asked), set()
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        for code, names in _codes(one):
            cells[code.co_filename] = None
            for name, value in ((name, names[name]) for name in _names(code) if name in names):
                module = getattr(value, "__module__", None)
                if isinstance(value, types.ModuleType):
                    imports[f"import {value.__name__} as {name}"] = None
                elif module == names["__name__"]:
                    waiting.append(value)
                elif isinstance(value, (bool, int, float, str, tuple)):
                    imports[f"{name} = {value!r}"] = None
                elif module and hasattr(value, "__name__"):
                    imports[f"from {module} import {value.__name__} as {name}"] = None
    text = "\n\n".join([*imports, *map(_definitions, cells)])
    defined = {getattr(node, "name", None) for node in ast.parse(text).body}
    for one in asked:
        if one.__name__ not in defined:
            raise ValueError(f"{one.__name__!r} has no text; it must be a function or class of a cell")
    return text


def names_of(source: str) -> dict[str, Any]:
    """What the text of ``source_of`` defines. Its lines stand in tracebacks."""
    linecache.cache[FILE] = len(source), None, source.splitlines(keepends=True), FILE
    names: dict[str, Any] = {"__name__": "notebook"}
    exec(compile(source, FILE, "exec"), names)
    return names


def _definitions(filename: str) -> str:
    nodes = ast.parse("".join(linecache.getlines(filename))).body
    return "\n\n".join(ast.unparse(node) for node in nodes if _is_plain(node))


def _is_plain(node: ast.stmt) -> bool:
    if not isinstance(node, ast.Assign):
        return isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom))
    try:
        ast.literal_eval(node.value)
    except ValueError:
        return False
    return True


def _codes(one) -> Iterator[tuple[types.CodeType, dict]]:
    for each in vars(one).values() if inspect.isclass(one) else [one]:
        function = inspect.unwrap(getattr(each, "__func__", each))
        if isinstance(function, types.FunctionType):
            yield function.__code__, function.__globals__


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from _names(const)
