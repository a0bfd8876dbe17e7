"""Calling a student's answer: silenced, twice, with copies of the arguments; what it returns is made plain.

Left out: what is written to the process's file descriptor 2 by C code; and shutting the answer in.
"""

from __future__ import annotations

import contextlib
import copy
import io
import re
import sysconfig
import traceback
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

from minigpt.checks.comparing import plain, same, show
from minigpt.checks.verdict import Wrong

LIBRARIES = (  # what is in a path that no student wrote
    "site-packages", "<frozen ", str(Path(__file__).parents[1]), sysconfig.get_path("stdlib"),
)  # fmt: skip
SHORT = {"c10::BFloat16": "bfloat16", "c10::Half": "float16", "float": "float32", "double": "float64"}  # as torch says
CAST = "a {a} tensor meets a {b} one in a product; cast one of them, as x.float() or y.to(x.dtype)"
MEANING = {  # what an error says, and what that means in an answer
    r"expected m1 and m2 to have the same dtype, but got: (?P<a>\S+) != (?P<b>\S+)": CAST,
    r"mat1 and mat2 must have the same dtype, but got (?P<a>\w+) and (?P<b>\w+)": CAST,
    r"shapes cannot be multiplied \((?P<a>\d+x\d+) and (?P<b>\d+x\d+)\)":
        "{a} times {b}: the inner two sizes differ; is one to be transposed?",
    r"'Linear' object has no attribute '(?P<a>\w+)'":
        "a plain nn.Linear has no {a}; it knows in_features, out_features, weight and bias",
    r"object has no attribute '(?P<a>\w+)'": "nothing has set {a} before it is asked for; is it spelled the same?",
    r"name '(?P<a>\w+)' is not defined": "no cell that was run gives {a} a value",
}  # fmt: skip


def call(function: Callable, *args, twice=True, untouched=True, none_ok=False, **kwargs):
    """``function(*args, **kwargs)``, silenced and watched; returns what it returned, as plain values.

    ``twice``: called again with the same arguments it must give the same. ``untouched``: it must leave its arguments
    alone; it gets copies. ``none_ok``: None is an answer. Raises Wrong for all of that, and for what it raises itself.
    """
    name = getattr(function, "__name__", "the function")
    results = []
    for _ in range(2 if twice else 1):
        mine = copy.deepcopy((args, kwargs)) if untouched else (args, kwargs)
        results.append(_run(name, function, *mine))
        if untouched and not same(mine, (args, kwargs)):
            raise Wrong("changes-arguments", f"{name} changes its arguments; it must leave them as they are")
    if twice and not same(*results):
        once, again = map(show, results)
        raise Wrong("unsteady", f"{name} gives {once} and then, called again with the same arguments, {again}")
    if results[0] is None and not none_ok:
        raise Wrong("returns-nothing", f"{name} returns nothing; does it end in a return?")
    return results[-1]


def _run(name: str, function: Callable, args: tuple, kwargs: dict):
    try:
        with silence():
            return plain(function(*args, **kwargs))
    except NotImplementedError as error:
        raise Wrong("not-written", f"{_unwritten(error, name)} is not written yet") from None
    except Wrong:
        raise
    except SystemExit:
        raise Wrong("ends-program", f"{name} ends the program instead of returning") from None
    except Exception as error:
        kind = type(error).__name__
        raise Wrong(f"raises-{kind.lower()}", f"{name} fails with {kind}: {_said(error)}{_where(error)}") from error


@contextlib.contextmanager
def silence():
    """No warnings, and nothing on stdout and stderr."""
    sink = io.StringIO()
    with contextlib.redirect_stdout(sink), contextlib.redirect_stderr(sink), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _said(error: Exception) -> str:
    """What it says, and what that means where it is one of ``MEANING``."""
    if type(error) is KeyError and error.args:
        return f"there is no key {error.args[0]!r}"
    for pattern, meaning in MEANING.items():
        if found := re.search(pattern, str(error)):
            return f"{error}: " + meaning.format(
                **{name: SHORT.get(word, word) for name, word in found.groupdict().items()}
            )
    return str(error).strip() or "it says no more"


def explained(verdict: Wrong, hints: Mapping[str, str], id: str = "") -> Wrong:
    """The verdict with the first of ``hints`` whose words it says, before the line of code; and then with this id."""
    for words, hint in hints.items():
        if words in str(verdict):
            said, *code = str(verdict).split("\n", 1)
            return Wrong(id or verdict.id, "\n".join([f"{said}. {hint}", *code]))
    return verdict


def _own(error: Exception) -> list[traceback.FrameSummary]:
    """The student's own lines that it came through, outermost first."""
    lines = traceback.extract_tb(error.__traceback__)
    return [line for line in lines if not any(part in line.filename for part in LIBRARIES)]


def _where(error: Exception) -> str:
    """The last of the student's own lines that the error came from, set below the sentence."""
    mine = _own(error)
    if not mine:
        return ""
    return f"\n    line {mine[-1].lineno} of the answer's cell{': ' + mine[-1].line if mine[-1].line else ''}"


def _unwritten(error: Exception, name: str) -> str:
    """The function that is not written: the one called ``name``, or another that it calls."""
    mine = _own(error)
    last = mine[-1].name if len(mine) > 1 else name
    return name if last.startswith(("_", "<")) or last in ("forward", "backward") else last
