"""Calling a student's answer: silenced, twice, with copies of the arguments; what it returns is made plain.

Whatever an answer does, it becomes a sentence about the answer and, where it raised, the line of it that did. One that
does not end is stopped after ``SECONDS``, where the system has an alarm for that (Windows has none).

Left out: what is written to the process's file descriptor 2 by C code; and shutting the answer in.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import io
import re
import signal
import sysconfig
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch

from minigpt.checks import answers
from minigpt.checks.comparing import plain, same, show
from minigpt.checks.verdict import Wrong

SECONDS = 60  # that one call of an answer may take; the slowest right one takes less than one
LIBRARIES = (  # what is in a path that no student wrote
    "site-packages", "<frozen ", str(Path(__file__).parents[1]), sysconfig.get_path("stdlib"),
)  # fmt: skip
SHORT = {"c10::BFloat16": "bfloat16", "c10::Half": "float16", "float": "float32", "double": "float64"}  # as torch says
CAST = "a {a} tensor meets a {b} one in a product; cast one of them, as x.float() or y.to(x.dtype)"
MEANING = {  # what an error says, and what that means in an answer
    r"expected m1 and m2 to have the same dtype, but got: (?P<a>\S+) != (?P<b>\S+)": CAST,
    r"mat1 and mat2 must have the same dtype, but got (?P<a>\w+) and (?P<b>\w+)": CAST,
    r"shapes cannot be multiplied \((?P<a>\d+x\d+) and (?P<b>\d+x\d+)\)":
        "a product of {a} and {b}, whose inner two sizes differ; is one to be transposed?",
    r"size of tensor a \((?P<a>\d+)\) must match the size of tensor b \((?P<b>\d+)\)":
        "a tensor of {a} meets one of {b}, element by element; there the two must be of one size",
    r"'Linear' object has no attribute '(?P<a>\w+)'":
        "a plain nn.Linear has no {a}; it knows in_features, out_features, weight and bias",
    r"(?P<b>'\w+' object) has no attribute '(?P<a>\w+)'": "the {b} has no {a}; is it set before, and spelled the same?",
    r"name '(?P<a>\w+)' is not defined": "there is no {a}; has the cell been run that makes it?",
    r"local variable '(?P<a>\w+)' where it is not associated": "{a} is used before the function gives it a value",
    r"(max|min)\(\) (arg is an empty sequence|iterable argument is empty)": "there is nothing here to choose from",
    r"element 0 of tensors does not require grad":
        "what is to go backward has no graph: it was made where gradients are off, or is detached",
    r"maximum recursion depth exceeded": "it calls itself without end",
}  # fmt: skip
MODULES = {  # what no cell has to make
    "np": "import numpy as np", "nn": "from torch import nn", "F": "import torch.nn.functional as F",
} | {name: f"import {name}" for name in ("math", "numpy", "torch", "random", "itertools", "functools")}  # fmt: skip


class TooLong(BaseException):
    """An answer ran for ``SECONDS``. No Exception, so that an answer's own ``except`` lets it pass."""


def call(function: Callable, *args, twice=True, untouched=True, none_ok=False, **kwargs):
    """``function(*args, **kwargs)``, silenced and watched; returns what it returned, as plain values.

    ``twice``: called again with the same arguments it must give the same. ``untouched``: it must leave its arguments
    alone; it gets copies. ``none_ok``: None is an answer. Raises Wrong for all of that, and for what it raises itself.
    """
    options = dict(twice=twice, untouched=untouched, none_ok=none_ok)
    if away := answers.sent("call", function, args, dict(kwargs, **options)):
        return away()
    if not callable(function):
        raise Wrong("no-function", f"the answer is {show(function)}; a function is asked for: was its name used again?")
    name = name_of(function)
    results, printed = [], ""
    for _ in range(2 if twice else 1):
        mine = copy.deepcopy((args, kwargs)) if untouched else (args, kwargs)
        result, printed = _run(name, function, *mine)
        results.append(result)
        if untouched and not same(mine, (args, kwargs)):
            changed = _changed(function, *mine, args, kwargs)
            raise Wrong("changes-arguments", f"{name} changes {changed}; it must leave its arguments as they are")
    if twice and not same(*results):
        once, again = map(show, results)
        raise Wrong("unsteady", f"{name} gives {once} and then, called again with the same arguments, {again}")
    if results[0] is None and not none_ok:
        instead = "prints and returns nothing; print only shows" if printed else "returns nothing"
        raise Wrong("returns-nothing", f"{name} {instead}: end it in a return")
    return results[-1]


def name_of(function: Callable) -> str:
    """As messages call it; a partial has no name, and an answer may be anything."""
    return getattr(function, "__name__", "the function")


def _changed(function: Callable, mine: tuple, my_words: dict, args: tuple, kwargs: dict) -> str:
    """The name of the first argument that is no longer what it was."""
    try:
        names = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        names = []
    for name, now, before in zip(names, mine, args):
        if not same(now, before):
            return name
    return next((name for name in kwargs if not same(my_words[name], kwargs[name])), "its arguments")


def _run(name: str, function: Callable, args: tuple, kwargs: dict) -> tuple:
    """(what it returned, what it printed)."""
    on = torch.is_grad_enabled()
    try:
        with silence() as said, _alarm():
            given = plain(function(*args, **kwargs)), said.getvalue()
        if torch.is_grad_enabled() != on:
            what = "on, where they were off" if torch.is_grad_enabled() else "off, and nothing after it can be trained"
            instead = "with torch.enable_grad():" if torch.is_grad_enabled() else "with torch.no_grad():"
            raise Wrong("leaves-gradients", f"{name} leaves gradients switched {what}: write it as `{instead}`")
        return given
    except Wrong:
        raise
    except SystemExit:
        raise Wrong("ends-program", f"{name} ends the program instead of returning") from None
    except (TooLong, KeyboardInterrupt) as error:
        slow = f"had not ended after {SECONDS} seconds" if isinstance(error, TooLong) else "was stopped while it ran"
        raise Wrong("does-not-end", f"{name} {slow}; does a loop in it never end?{_where(error)}") from None
    except BaseException as error:
        if isinstance(error, NotImplementedError) and not error.args:  # torch raises it, too, and says why
            raise Wrong("not-written", f"{_unwritten(error, name)} is not written yet") from None
        kind = type(error).__name__
        raise Wrong(f"raises-{kind.lower()}", f"{name} fails with {kind}: {_said(error)}{_where(error)}") from error
    finally:
        torch.set_grad_enabled(on)


@contextlib.contextmanager
def silence() -> Iterator[io.StringIO]:
    """No warnings, and nothing on stdout and stderr; it is kept."""
    sink = io.StringIO()
    with contextlib.redirect_stdout(sink), contextlib.redirect_stderr(sink), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield sink


@contextlib.contextmanager
def _alarm() -> Iterator[None]:
    """TooLong after ``SECONDS``; nothing where there is no alarm, or where somebody else has set one."""
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(*_):
        raise TooLong

    before = signal.signal(signal.SIGALRM, ring)
    waiting = signal.setitimer(signal.ITIMER_REAL, SECONDS)[0]
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, waiting)
        signal.signal(signal.SIGALRM, before)


def _said(error: BaseException) -> str:
    """Its meaning, where it is one of ``MEANING``; else its first sentence."""
    if type(error) is KeyError and error.args:
        return f"there is no key {error.args[0]!r}"
    if type(error) is NameError and error.name in MODULES:
        return f"{error.name} is not there yet: {MODULES[error.name]}"
    for pattern, meaning in MEANING.items():
        if found := re.search(pattern, str(error)):
            return meaning.format(**{name: SHORT.get(word, word) for name, word in found.groupdict().items()})
    return first_sentence(str(error)) or "it says no more"


def first_sentence(text: str) -> str:
    """``text`` to the end of its first sentence or line, without what ends it; at most 200 characters of it."""
    first = re.split(r"\n|(?<=[.?!]) (?=[A-Z])", text.strip(), maxsplit=1)[0].rstrip(".!")
    return first if len(first) <= 200 else first[:197] + "..."


def explained(verdict: Wrong, hints: Mapping[str, str], id: str = "") -> Wrong:
    """The verdict with the first of ``hints`` whose words its error says, before the line of code; and this id."""
    for words, hint in hints.items():
        if words in str(verdict.__cause__ or ""):
            said, *code = str(verdict).split("\n", 1)
            better = Wrong(id or verdict.id, "\n".join([f"{said}{'' if said[-1] in '.?!' else '.'} {hint}", *code]))
            better.__cause__ = verdict.__cause__
            return better
    return verdict


def _own(error: BaseException) -> list[traceback.FrameSummary]:
    """The student's own lines that it came through, outermost first."""
    lines = traceback.extract_tb(error.__traceback__)
    return [line for line in lines if not any(part in line.filename for part in LIBRARIES)]


def _where(error: BaseException) -> str:
    """The last of the student's own lines that the error came from, set below the sentence."""
    mine = _own(error)
    if not mine:
        return ""
    return f"\n    line {mine[-1].lineno} of the answer's cell{': ' + mine[-1].line if mine[-1].line else ''}"


def _unwritten(error: BaseException, name: str) -> str:
    """The function that is not written: the one called ``name``, or another that it calls."""
    mine = _own(error)
    last = mine[-1].name if len(mine) > 1 else name
    return name if last.startswith(("_", "<")) or last in ("forward", "backward") else last
