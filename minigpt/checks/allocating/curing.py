"""Judging what makes a run fit a card: the run is replayed on a device with the card's capacity.

    warms(warm_up, case)          ``warm_up(lengths)``: at most two steps more, before all others
    orders(reorder, case)         ``reorder(lengths)``: the same steps in another order
    empties(empty_once, case)     ``empty_once(lengths, fits)``: "empty_cache" once, where it helps
    sets(options, case)           ``options()``: what ``PYTORCH_ALLOC_CONF`` is to say

``case``: a model, a plan, lengths, and a capacity in bytes for which the run does not fit as it comes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from minigpt.checks.allocating import asking, running  # noqa: F401  closes the book
from minigpt.checks.calling import first_sentence
from minigpt.checks.closing import by_hand, knows
from minigpt.checks.comparing import show
from minigpt.checks.probes import allocating
from minigpt.checks.verdict import Wrong
from minigpt.memory.plan import TrainingPlan
from minigpt.model import GPTConfig

knows(__name__, running.run_on, running.replay)


class Case(NamedTuple):
    model: GPTConfig
    plan: TrainingPlan
    lengths: tuple[int, ...]
    capacity: int

    def run(self, told, options: str = "") -> str:
        return running.run_on(self.model, self.plan, told, self.capacity, options)


def warms(warm_up: Callable, case: Case) -> None:
    lengths = list(case.lengths)
    mine = _steps(by_hand(warm_up, lengths), "warm_up")
    if mine[-len(lengths):] != lengths:  # fmt: skip
        raise Wrong("other-steps", "warm_up: the steps as they come must stand at the end of the run, unchanged")
    more = mine[: -len(lengths)]
    if len(more) > 2:
        raise Wrong("too-many", f"warm_up: {len(more)} steps stand before the others; at most two may")
    if any(length not in lengths for length in more):
        raise Wrong("other-lengths", f"warm_up: {show(more)} stand before; each must be one of the lengths")
    failed = case.run(mine)
    if not failed:
        return
    longest = max(lengths)
    if not more:
        raise Wrong("as-it-comes", f"warm_up: no step stands before the others: {_why(failed)}")
    if longest not in more:
        raise Wrong("not-the-longest", f"warm_up: {show(more)} first: no step has the longest length: {_why(failed)}")
    if more[0] == longest:
        raise Wrong("state-in-the-longest", "warm_up: the longest length comes first: the optimizer's state is made at "
                    f"the end of the first step, and lies in its segments from then on: {_why(failed)}")  # fmt: skip
    raise Wrong("runs-out", f"warm_up: {show(more)} first: {_why(failed)}")


def orders(reorder: Callable, case: Case) -> None:
    lengths = list(case.lengths)
    mine = _steps(by_hand(reorder, lengths), "reorder")
    if Counter(mine) != Counter(lengths):
        raise Wrong(
            "other-steps", f"reorder: the steps are {show(mine)}; the same lengths, in another order, are asked for"
        )
    failed = case.run(mine)
    if not failed:
        return
    if mine == lengths:
        raise Wrong("as-it-comes", f"reorder: the order is as it was: {_why(failed)}")
    if mine[0] == max(lengths):
        raise Wrong("state-in-the-longest", "reorder: the longest step comes first: the optimizer's state is made at "
                    f"its end, and lies in its segments from then on: {_why(failed)}")  # fmt: skip
    raise Wrong("runs-out", f"reorder: {_why(failed)}")


def empties(empty_once: Callable, case: Case) -> None:
    lengths = list(case.lengths)
    runs: list[list] = [lengths, *([*lengths[:at], "empty_cache", *lengths[at:]] for at in range(len(lengths) + 1))]
    table = {tuple(run): not case.run(run) for run in runs}
    if True not in table.values() or table[tuple(lengths)]:
        raise RuntimeError(f"{case}: the run fits as it comes, or no empty_cache makes it fit")

    mine = allocating.chosen(empty_once, lengths, [(list(run), goes) for run, goes in table.items()])
    if not isinstance(mine, (list, tuple)):
        raise Wrong("wrong-type", f"empty_once: {show(mine)}; a list is asked for: lengths, and 'empty_cache'")
    count = sum(each == "empty_cache" for each in mine)
    if [each for each in mine if each != "empty_cache"] != lengths:
        raise Wrong("other-steps", "empty_once: the steps must be as they come, with 'empty_cache' between two of them")
    if count != 1:
        raise Wrong(
            "too-many" if count else "as-it-comes",
            f"empty_once: 'empty_cache' is there {count} times; once is asked for",
        )
    if not table[tuple(mine)]:
        at = list(mine).index("empty_cache")
        id = "before-the-longest" if at == lengths.index(max(lengths)) else "runs-out"
        where = "right before the longest step" if id == "before-the-longest" else f"after {at} steps"
        raise Wrong(id, f"empty_once: {where} it does not help here: {_why(case.run(mine))}")


def sets(options: Callable, case: Case) -> None:
    mine = by_hand(options)
    if type(mine) is not str:
        raise Wrong("wrong-type", f"options: {show(mine)}; a text is asked for, NAME:VALUE")
    try:
        failed = case.run(case.lengths, mine)
    except ValueError as error:
        raise Wrong("unknown-option", f"options: {first_sentence(str(error))}") from None
    if failed:
        raise Wrong("runs-out", f"options: with {mine!r} as without: {_why(failed)}")


def _steps(mine, name: str) -> list[int]:
    if not isinstance(mine, (list, tuple)) or not all(type(length) is int for length in mine) or not mine:
        raise Wrong("wrong-type", f"{name}: {show(mine)}; a list of lengths is asked for")
    return list(mine)


def _why(failed: str) -> str:
    """The first sentence of torch's message."""
    return f"it runs out of memory ({failed.split('. GPU 0')[0].removeprefix('CUDA out of memory. ')})"
