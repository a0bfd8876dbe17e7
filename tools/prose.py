"""Numbers in prose are computed, never typed: ``[[ gib(step.peak.total) ]]`` becomes ``63.88 GiB``.

A placeholder is ``[[``, a space, one Python expression, a space, ``]]``, in Markdown. The spaces keep it apart
from LaTeX intervals and Markdown links. It sees what minigpt.memory offers, and the names of the document's own
numbers: a Python file beside it, ``07-lora.numbers.py`` for ``07-lora.md``. Its value is text, or a whole number,
printed with thousands separators.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

PLACEHOLDER = re.compile(r"\[\[ (.+?) \]\]")
BRACKETED = re.compile(  # where double brackets mean something else: fences, code, formulas, links
    r"^```.*?^```|^~~~.*?^~~~|(`+).+?\1|\$\$.+?\$\$|\$(?:[^$\n]|\n(?!\n))+\$|\[\[[^\[\]]*\]\](?=[(\[])",
    re.DOTALL | re.MULTILINE,
)


def filled(sources: list[str], text: str, path: Path, offered: dict | None = None) -> list[str]:
    """Pieces of Markdown with their placeholders replaced.

    ``text`` is the whole document that they are from, for the line in an error; ``path`` is its file of numbers, which
    need not exist; ``offered`` are more names for the placeholders. Raises ValueError, with the line, for a placeholder
    that fails or is not written as one, for a file that fails, and for a name in it that is for nothing.
    """
    code = path.read_text(encoding="utf8") if path.exists() else ""
    names = _offered() | (offered or {}) | _run(code, path.name)
    done = [_fill(source, names, text) for source in sources]
    _refuse_unused(code, path.name, sources)
    return done


def _offered() -> dict:
    """The names that every placeholder sees."""
    from minigpt import memory
    from minigpt.memory import units
    from minigpt.memory.plan import PRECISIONS

    names = {name: getattr(units, name) for name in dir(units) if not name.startswith("_")}
    names |= {name: getattr(memory, name) for name in memory.__all__ if name != "MemoryMeter"}
    return names | {"PRECISIONS": PRECISIONS}


def _run(code: str, file: str) -> dict:
    """The names that a file of numbers defines. It sees what it imports, and no more."""
    names: dict = {}
    try:
        exec(compile(code, file, "exec"), names)
    except (Exception, SystemExit) as error:
        line, trace = getattr(error, "lineno", None), error.__traceback__
        while trace:
            if trace.tb_frame.f_code.co_filename == file:
                line = trace.tb_lineno
            trace = trace.tb_next
        source = code.split("\n")[(line or 1) - 1].strip()
        raise ValueError(f"{file}, line {line or 1}: {source!r} fails: {_say(error)}") from None
    return names


def _refuse_unused(code: str, file: str, sources: list[str]) -> None:
    """Refuse a name that a file of numbers binds, and that neither a placeholder nor the file itself reads."""
    tree = ast.parse(code)
    placeholders = [ast.parse(match[1], mode="eval") for source in sources for match in PLACEHOLDER.finditer(source)]
    read = {name for part in (tree, *placeholders) for name in _names(part, ast.Load)}
    for statement in tree.body:
        for name in _bound(statement):
            if name not in read:
                raise ValueError(f"{file}, line {statement.lineno}: no placeholder uses {name!r}: delete it")


def _bound(statement: ast.stmt) -> list[str]:
    """The names that a statement at the top of a file binds. What a function binds inside is its own."""
    if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
        return [statement.name]
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        return [alias.asname or alias.name for alias in statement.names]
    return _names(statement, ast.Store)


def _names(tree: ast.AST, context: type[ast.expr_context]) -> list[str]:
    return [node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, context)]


def _fill(source: str, names: dict, text: str) -> str:
    """One piece of Markdown with its placeholders replaced by what they come to with ``names``."""
    left = BRACKETED.sub("", PLACEHOLDER.sub("", source))
    for line in left.split("\n"):
        if "[[" in line or "]]" in line:
            raise ValueError(f"{_line(text, line)}: {line.strip()[:60]!r} is no placeholder; write [[ x ]] on one line")

    def value(match: re.Match) -> str:
        expression = match[1]
        try:
            result = eval(compile(expression, "placeholder", "eval"), names)
        except (Exception, SystemExit) as error:
            raise ValueError(f"{_line(text, match[0])}: [[ {expression} ]] fails: {_say(error)}") from None
        if isinstance(result, bool) or not isinstance(result, (str, int)):
            raise ValueError(
                f"{_line(text, match[0])}: [[ {expression} ]] is a {type(result).__name__}; "
                "allowed: text or a whole number (format a float, or give it a unit)"
            )
        return result if isinstance(result, str) else f"{result:,}"

    return PLACEHOLDER.sub(value, source)


def _line(text: str, part: str) -> str:
    before, found, _ = text.partition(part)
    return f"line {before.count(chr(10)) + 1}" if found else "line unknown"


def _say(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
