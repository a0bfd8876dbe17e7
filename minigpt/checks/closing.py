"""The closed book: while an answer runs, nothing that knows the truth answers.

    knows(__name__, nf4.quantize)         said by a module of truths: its functions are to refuse, and others
    with closed(): ...                    they refuse, and so does the course's own arithmetic
    by_hand(function, *args)              call(...) with the book closed
    asked_first([...])                    several of those, before the first of their results is looked at
    @remembered                           a truth that is made once, and not told meanwhile

A function refuses wherever it was imported from, because its code is replaced; one that remembers (``remembered``) says
nothing meanwhile. An answer can also look into the frames that call it, so truths are made afterwards.

Left out: an answer that goes looking for what was replaced.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache, wraps
from importlib import import_module
from types import FunctionType

import torch

from minigpt.checks import answers
from minigpt.checks.calling import call
from minigpt.checks.verdict import Wrong

_truths: dict[str | Callable, None] = {}  # in order, each once
_records: dict[type, None] = {}
_guards: dict[str, None] = {}
_running: list[None] = []  # one for each answer that runs
_asked: list[tuple[str, str]] = []  # what a closed book was asked: the id of the verdict, and what that is in words


def knows(*truths: str | Callable, guard: str = "", records: Iterable[type] = ()) -> None:
    """While an answer runs these refuse: functions, and every function of a module that is given by its name.

    ``guard``, if it is given, is one of ``minigpt.checks.guards``, a context that is entered meanwhile; ``records`` are
    classes of which no attribute can be read.
    """
    _truths.update(dict.fromkeys(truths))
    _records.update(dict.fromkeys(records))
    _guards.update(dict.fromkeys([guard] if guard else []))


def remembered(function: Callable) -> Callable:
    """As ``functools.cache``, but that what it remembers is not told while the book is closed."""
    known = cache(function)

    @wraps(function)
    def ask(*args):
        return _closed() if _running else known(*args)

    return ask


def refuse(id: str, what: str):
    """Called by what must not answer. Raises Wrong, and ``closed`` does so once more where the answer swallows it."""
    _asked.append((id, what))
    raise _refusal()


def _refusal() -> Wrong:
    id, what = _asked[0]
    return Wrong(id, f"the answer asks {what} for the result; write the arithmetic yourself")


def _closed(*args, **kwargs):
    """Stands in for a function, or for its code alone: so it must find everything itself."""
    import sys

    from minigpt.checks.closing import refuse

    module = sys._getframe().f_globals["__name__"]
    if module.startswith("bitsandbytes"):
        refuse("asks-bitsandbytes", "bitsandbytes")
    if module == "torch.utils.checkpoint":
        refuse("asks-torch", module)
    refuse("asks-course", "the course's own arithmetic")


@contextlib.contextmanager
def closed(building: bool = False, guards: Iterable[str] = ()):
    """Nothing that knows the truth answers; with ``building`` a model can be built, else not that either."""
    guarding = import_module("minigpt.checks.guards")  # which asks this module to refuse
    stand_ins: dict[tuple[type, str], Callable] = {(owner, "__getattribute__"): _closed for owner in _records}
    if not building:
        stand_ins[torch.nn.Module, "__init__"] = lambda *_, **__: refuse("asks-model", "a model that it builds")
    if not _running:  # a book that is closed within a closed one forgets nothing
        _asked.clear()
    with contextlib.ExitStack() as stack:
        _running.append(None)
        stack.callback(_running.pop)
        for function in _all_functions():
            stack.callback(setattr, function, "__code__", function.__code__)
            function.__code__ = _closed.__code__
        for (owner, name), stand_in in stand_ins.items():
            original = owner.__dict__.get(name)
            stack.callback(*(delattr, owner, name) if original is None else (setattr, owner, name, original))
            setattr(owner, name, stand_in)
        for guard in dict.fromkeys([*_guards, *guards]):
            stack.enter_context(getattr(guarding, guard)())
        try:
            yield
        except Wrong:
            if not _asked:
                raise
    if _asked:  # also where the answer swallowed the refusal, or made another error of it
        raise _refusal()


def _all_functions() -> list[FunctionType]:
    """Everything that is to refuse, once each."""
    found = []
    for truth in _truths:
        module = vars(sys.modules[truth]).values() if isinstance(truth, str) else [truth]
        found += [f for f in module if callable(f) and truth in (f, getattr(f, "__module__", ""))]
    return [f for f in dict.fromkeys(map(inspect.unwrap, found)) if isinstance(f, FunctionType)]


def by_hand(function: Callable, *args, building: bool = False, guards: Iterable[str] = (), **options):
    """``call(function, *args, ...)`` with the book closed, where the function lives."""
    more = dict(options, building=building, guards=[*_guards, *guards])
    if away := answers.sent("by_hand", function, args, more):
        return away()
    with closed(building, guards):
        return call(function, *args, **options)


def asked_first(calls: Iterable[Callable]) -> Iterator:
    """What each call returned, once all were made. Raises the Wrong that a call earned when its turn comes."""
    given = []
    for ask in calls:
        try:
            given.append(ask())
        except Wrong as verdict:
            given.append(Wrong(verdict.id, str(verdict)))
    for answer in given:
        if isinstance(answer, Wrong):
            raise answer
        yield answer
