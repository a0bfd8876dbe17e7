"""Calling a student's answer: silenced, twice, with copies of the arguments, and with the book closed if asked.

Left out: what is written to the process's file descriptor 2 by C code; and shutting the answer in.
"""

from __future__ import annotations

import contextlib
import copy
import io
import warnings
from collections.abc import Callable

import torch

from minigpt.checks.comparing import same, show


def call(function: Callable, *args, by_hand=False, twice=True, untouched=True, none_ok=False, **kwargs):
    """``function(*args, **kwargs)``, silenced and watched; returns what it returned.

    ``by_hand``: it must be the student's own arithmetic. The course's (``predict``, ``measure``, ``Architecture``,
    ``PRECISIONS``) refuses to answer meanwhile, and no model can be built to ask it.
    ``twice``: called again with the same arguments it must give the same. ``untouched``: it must leave its arguments
    alone; it gets copies. ``none_ok``: None is an answer. Raises AssertionError for all of that, and for whatever
    it raises itself.
    """
    name = getattr(function, "__name__", "the function")
    results = []
    for _ in range(2 if twice else 1):
        mine = copy.deepcopy((args, kwargs)) if untouched else (args, kwargs)
        results.append(_run(name, function, *mine, by_hand))
        if untouched and not same(mine, (args, kwargs)):
            raise AssertionError(f"{name} changes its arguments; it must leave them as they are")
    if twice and not same(*results):
        raise AssertionError(
            f"{name} gives {show(results[0])} and then, called again with the same arguments, {show(results[1])}"
        )
    if results[0] is None and not none_ok:
        raise AssertionError(f"{name} returns nothing; does it end in a return?")
    return results[-1]


def _run(name: str, function: Callable, args: tuple, kwargs: dict, by_hand: bool):
    sink = io.StringIO()
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.redirect_stdout(sink))
        stack.enter_context(contextlib.redirect_stderr(sink))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        if by_hand:
            stack.enter_context(_closed_book())
        try:
            result = function(*args, **kwargs)
        except NotImplementedError:
            raise AssertionError(f"{name} is not written yet") from None
        except AssertionError:
            raise
        except SystemExit:
            raise AssertionError(f"{name} ends the program instead of returning") from None
        except Exception as error:
            raise AssertionError(f"{name} fails with {type(error).__name__}: {error}") from error
    return result


_asked: list[str] = []  # what a closed book was asked


def refuse(what: str):
    """Called by what a closed book must not answer: the student's answer has asked ``what``."""
    _asked.append(what)
    raise AssertionError(_not_by_hand())


def _not_by_hand() -> str:
    return f"the answer asks {_asked[0]} for the result; write the arithmetic yourself"


def closed(*args, **kwargs):
    """Stands in for a function, or for its code alone: so it must find everything itself."""
    from minigpt.checks.calling import refuse

    refuse("the course's own arithmetic")


@contextlib.contextmanager
def _closed_book():
    """The course's own answers refuse, wherever the student imported them from, and no model can be built."""
    from minigpt.checks.slips import measured
    from minigpt.memory.families import Architecture
    from minigpt.memory.measured.step import measure, measure_module
    from minigpt.memory.plan import Precision
    from minigpt.memory.predicted.step import predict

    _asked.clear()
    codes = {function: function.__code__ for function in (predict, measure, measure_module, measured)}
    refuse_sums = property(lambda self: refuse("the course's own arithmetic"))
    replaced = [
        (Architecture, "parameters", refuse_sums), (Architecture, "linear_parameters", refuse_sums),
        (Architecture, "tensors", closed), (Architecture, "block_tensors", closed),
        (Precision, "__getattribute__", lambda self, name: refuse("the course's table of precisions")),
        (torch.nn.Module, "__init__", lambda *args, **kwargs: refuse("a model that it builds")),
    ]  # fmt: skip
    before = [(owner, name, owner.__dict__.get(name)) for owner, name, _ in replaced]
    for function in codes:
        function.__code__ = closed.__code__
    for owner, name, stand_in in replaced:
        setattr(owner, name, stand_in)
    try:
        yield
    finally:
        for function, code in codes.items():
            function.__code__ = code
        for owner, name, original in before:
            setattr(owner, name, original) if original is not None else delattr(owner, name)
    if _asked:  # also where the answer swallowed the refusal
        raise AssertionError(_not_by_hand())
