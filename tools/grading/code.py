"""What somebody typed into a cell that the course wrote: statements and lines of it that the released cell lacks."""

from __future__ import annotations

import ast
import io
import re
import tokenize
import warnings
from collections.abc import Callable, Collection
from difflib import SequenceMatcher
from functools import lru_cache

# x[0](a) is no link; bounded, so that a megabyte of brackets takes no hours
LINK = re.compile(r"!?\[([^\[\]]{0,500})\]\((?:\.\.?/|[a-z]{1,10}:|#|[\w-]+\.(?:ipynb|svg|png|md)\b)[^)\s]*\)")
LONGEST = 200_000  # characters that are parsed, and a tenth as many lines compared; of more, line by line
MAGIC = re.compile(r"^([ \t]*)[%!?].*", re.MULTILINE)


def parsed(source: str) -> list[ast.stmt] | None:
    """The statements of ``source``, a line of IPython's magic as ``...``; None where it is no Python."""
    if len(source) > LONGEST:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an invalid escape in a student's string
            try:
                body = ast.parse(source).body
            except SyntaxError:
                body = ast.parse(MAGIC.sub(r"\1...", source)).body
        for statement in body:
            ast.dump(statement)  # a formula of ten thousand terms parses, and is too deep for everything after
        return body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


@lru_cache(2_000)
def defined(source: str) -> frozenset[str]:
    """Names of the functions and classes that ``source`` defines, also where the rest of it does not parse."""
    body = parsed(source)
    if body is not None:
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        return frozenset(node.name for node in body if isinstance(node, kinds))
    return frozenset(re.findall(r"^(?:async +)?(?:def|class) +(\w+)", source, re.MULTILINE))


def assigned(statement: ast.stmt) -> set[str]:
    """The names that a statement sets, where setting names is all it does."""
    targets: list[ast.expr] = []
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, (ast.AnnAssign, ast.AugAssign)):
        targets = [statement.target]
    targets = [name for target in targets for name in (target.elts if isinstance(target, ast.Tuple) else [target])]
    names = {target.id for target in targets if isinstance(target, ast.Name)}
    return names if len(names) == len(targets) else set()


def cut(source: str, drop: Callable[[ast.stmt], bool], known: str = "") -> tuple[str, list[str]]:
    """``source`` without the statements that ``drop`` names and without comments of ``known``; and those statements.

    ``source`` must parse. Everything else stays as it was typed.
    """
    lines = source.encode("utf8").split(b"\n")  # ast counts columns in bytes
    gone: list[str] = []
    for statement in reversed(parsed(source) or []):
        if not drop(statement):
            continue
        decorators = getattr(statement, "decorator_list", [])
        first = min([statement.lineno, *(one.lineno for one in decorators)]) - 1
        start = 0 if decorators else statement.col_offset
        last, end = (statement.end_lineno or 1) - 1, statement.end_col_offset or 0
        head, tail = lines[first][:start], lines[last][end:]
        whole = b"\n".join([lines[first][start:], *lines[first + 1 : last + 1]])
        gone.insert(0, whole[: len(whole) - len(tail)].decode("utf8"))
        if tail.lstrip().startswith(b";"):
            tail = tail.lstrip()[1:].lstrip()
        elif head.rstrip().endswith(b";"):
            head = head.rstrip()[:-1].rstrip()
        rest = head + tail if head.strip() else tail.lstrip()
        lines[first : last + 1] = [rest] if rest.strip() else []
    kept = [line.decode("utf8") for line in lines]
    kept += [comment for segment in gone for comment in comments(segment) if comment not in known] if known else []
    kept = [line for line in kept if not (line.strip().startswith("#") and line.strip() in known)]
    return "\n".join(kept).strip("\n"), gone


def comments(source: str) -> list[str]:
    """The comments inside ``source``, which must parse."""
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    except (SyntaxError, tokenize.TokenError):  # a line of magic among them
        return []
    return [token.string for token in tokens if token.type == tokenize.COMMENT]


def typed_code(source: str, original: str, names: Collection[str] = ()) -> tuple[str, list[str]]:
    """What ``source`` has that the released ``original`` lacks; and statements that set nothing but ``names``.

    Where ``source`` is no Python, lines are compared instead of statements.
    """
    if parsed(source) is None:
        lines = [line for line in typed_lines(source, original) if line.strip()]
        if not names:
            return "\n".join(lines), []
        sets = re.compile(rf"\s*({'|'.join(map(re.escape, sorted(names)))})\s*(:[^=]*)?=(?!=)")
        return "\n".join(line for line in lines if not sets.match(line)), [line for line in lines if sets.match(line)]
    given = {ast.dump(statement) for statement in parsed(original) or []}
    rest, _ = cut(source, lambda statement: ast.dump(statement) in given, original)
    return without(rest, names, original)


def without(source: str, names: Collection[str] | None, known: str = "") -> tuple[str, list[str]]:
    """``source`` without statements that do nothing but set ``names`` (None: any names); and those statements."""
    if parsed(source) is None:
        return source, []
    drop = lambda s: bool(assigned(s)) and (names is None or assigned(s) <= set(names))  # noqa: E731
    return cut(source, drop, known)


def typed_lines(source: str, original: str) -> list[str]:
    """The lines of ``source`` that are not in ``original``, in order; links and spaces make no difference.

    A copy on Colab has the same text with other links. Parts of a line are not told apart: the whole line counts.
    """
    mine = source.split("\n")
    if squeezed(source) == squeezed(original):
        return []
    given, typed = ([squeezed(line) for line in LINK.sub(r"\1", text).split("\n")] for text in (original, source))
    if len(mine) > LONGEST // 10:
        return [line for line, plain in zip(mine, typed) if plain not in given]
    matcher = SequenceMatcher(None, given, typed, autojunk=False)
    return [line for tag, _, _, a, b in matcher.get_opcodes() if tag in ("insert", "replace") for line in mine[a:b]]


@lru_cache(2_000)  # of one cell it is asked once for each cell of the lab
def squeezed(text: str) -> str:
    """``text`` without the targets of its links, and without white space: what two copies of a cell have in common."""
    return "".join(LINK.sub(r"\1", text).split())
