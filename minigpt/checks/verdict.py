"""What a check says of an answer: an id for banks and tests, a sentence for people, points for nbgrader.

    raise Wrong("gib-for-gb", "nano: off by exactly 1.0737: GiB where GB was asked")
    score("pack and unpack are right", part(1, packs, pack, each=sizes), part(1, unpacks, unpack, each=sizes))

``score`` is the last line of a check cell. What a cell comes to nbgrader takes for the points: an error for none, a
number for so many, no value for all of them. Parts are bound to what they call before the first answer runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass


class Wrong(AssertionError):
    """An answer is wrong: ``id`` in kebab-case, several joined by "+" where several mistakes are named; a sentence."""

    def __init__(self, id: str, sentence: str) -> None:
        super().__init__(sentence)
        self.id = id

    @property
    def ids(self) -> frozenset[str]:
        return frozenset(self.id.split("+"))

    def _render_traceback_(self) -> list[str]:
        """What IPython shows in the place of a traceback, which would lead through the checks."""
        return [f"{type(self).__name__}: {self}"]


class Points(float):
    """A part of a check cell's points, and ``verdict``: why it is not all of them."""

    verdict: Wrong

    def __new__(cls, points: float, verdict: Wrong) -> Points:
        made = super().__new__(cls, points)
        made.verdict = verdict
        return made


@dataclass(frozen=True, eq=False)
class Part:
    """So many ``points``, if ``check`` raises nothing for any case; none where one of ``after`` was wrong."""

    points: float
    check: Callable
    answers: tuple[Callable, ...]
    cases: list[tuple]  # what follows the answers, call by call
    options: dict
    after: tuple[Part, ...]

    def judge(self) -> None:
        for case in self.cases:
            self.check(*self.answers, *case, **self.options)


def part(
    points: float, check: Callable, *answers: Callable, each: Iterable | None = None,
    after: tuple[Part, ...] | Part = (), **options,
) -> Part:  # fmt: skip
    """``check(*answers, case, **options)`` for each case, or once without one."""
    cases = [()] if each is None else [(case,) for case in each]
    return Part(points, check, answers, cases, options, (after,) if isinstance(after, Part) else after)


def score(passed: str, *parts: Part) -> Points | None:
    """Judge the parts in order. Prints ``passed`` if all are right, raises Wrong if none is, else gives the Points."""
    failed, verdicts = [], []
    for each in parts:
        if any(other in failed for other in each.after):
            failed.append(each)
            continue
        try:
            each.judge()
        except Wrong as wrong:
            failed.append(each)
            verdicts.append((wrong.id, str(wrong)))  # without the frames that it came through, which hold truths
    if not failed:
        print(f"Passed: {passed}")
        return None
    ids, sentences = (dict.fromkeys(found) for found in zip(*verdicts))
    verdict = Wrong("+".join(ids), "\n".join(sentences))
    earned = sum(each.points for each in parts if each not in failed)
    if not earned:
        raise verdict
    print(f"{earned:g} of {sum(each.points for each in parts):g} points\n{verdict}")
    return Points(earned, verdict)


def passed(what: str) -> None:
    """The one line that a passed check prints."""
    print(f"Passed: {what}")
