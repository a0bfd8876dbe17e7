"""A check cell: a function that runs at once, and whose parameters are the answers that it looks at.

    @checks.check
    def check_count_minigpt(count_minigpt):
        cases = {...}
        return checks.score("count_minigpt agrees with the meter", checks.part(3, counts, count_minigpt, each=cases))

So a check leaves nothing behind but its own name, and no helper of a student's that is called ``cases`` is in its way.
It reads the answers that it names, and besides these only what it imports and what the lab's setup cells made. Behind a
``*`` stand the earlier answers that it ``needs``, asked where something is wrong, and what a run made: one may be
missing. In a judge, which runs a check where the student's code is not, answers are stand-ins (``answers.elsewhere``).
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable

from minigpt.checks import answers
from minigpt.checks.verdict import Points, Wrong


def check(judge: Callable[..., Points | None]) -> Points | None:
    """``judge``, with the notebook's own values of the names that it asks for; returns what it returns.

    Points that are not all of them are shown as the cell's value, which is where nbgrader reads them. Raises Wrong
    where a name has no value yet, and where somebody stops the check.
    """
    names, notebook = inspect.signature(judge).parameters, judge.__globals__
    given = {
        name: find_earlier(name, notebook) if one.kind is one.KEYWORD_ONLY else find(name, notebook)
        for name, one in names.items()
    }
    try:
        points = judge(**given)
    except KeyboardInterrupt:
        raise Wrong("stopped", "the check was stopped before it had judged the answer") from None
    interactive = sys.modules.get("IPython")
    if points is not None and interactive and interactive.get_ipython():
        sys.displayhook(points)
    return points


def find(name: str, notebook: dict):
    """The answer called ``name``, from where the student's code runs. Raises Wrong where there is none."""
    if channel := answers.current():
        return channel.answer(name)
    if name not in notebook:
        raise Wrong("not-run", f"there is no {name} yet: run the cells above this one, in order")
    return notebook[name]


def find_earlier(name: str, notebook: dict):
    """An earlier answer; where there is none, a function that says so when it is called."""

    def missing(*_, **__):
        find(name, notebook)

    try:
        return find(name, notebook)
    except Wrong:
        return missing
