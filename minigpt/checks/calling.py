"""Calling a student's answer: silenced, twice, with copies of the arguments; what it returns is made plain.

Left out: what is written to the process's file descriptor 2 by C code; and shutting the answer in.
"""

from __future__ import annotations

import contextlib
import copy
import io
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path

from minigpt.checks.comparing import plain, same, show
from minigpt.checks.verdict import Wrong

LIBRARIES = ("site-packages", str(Path(__file__).parents[1]))  # what is in a path that no student wrote


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
    except NotImplementedError:
        raise Wrong("not-written", f"{name} is not written yet") from None
    except Wrong:
        raise
    except SystemExit:
        raise Wrong("ends-program", f"{name} ends the program instead of returning") from None
    except Exception as error:
        kind = type(error).__name__
        where = _where(error)
        raise Wrong(f"raises-{kind.lower()}", f"{name} fails with {kind}: {error}{where}") from error


@contextlib.contextmanager
def silence():
    """No warnings, and nothing on stdout and stderr."""
    sink = io.StringIO()
    with contextlib.redirect_stdout(sink), contextlib.redirect_stderr(sink), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _where(error: Exception) -> str:
    """The last line of the student's own that the error came from."""
    lines = traceback.extract_tb(error.__traceback__)
    mine = [line for line in lines if not any(part in line.filename for part in LIBRARIES)]
    if not mine:
        return ""
    return f" (line {mine[-1].lineno}{': ' + mine[-1].line if mine[-1].line else ''})"
