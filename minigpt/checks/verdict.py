"""What a check says of an answer: an id for banks and tests, a sentence for people, points for nbgrader.

    raise Wrong("gib-for-gb", "nano: off by exactly 1.0737: GiB where GB was asked")
    score("pack and unpack are right", part(1, packs, pack, each=sizes), part(1, unpacks, unpack, each=sizes))

``score`` is the last line of a check. What its cell comes to nbgrader takes for the points: an error for none, a
number for so many, no value for all of them. Parts are bound to what they call before the first answer runs.

    score("...", part(2, injects, inject, each=cases), needs=lambda: {"part 1": part(0, outputs, LoRALinear, each=few)})

What a check ``needs`` of earlier parts is made and judged where something is wrong, and only there: if that is wrong
itself, the verdict says so first. It changes no points.
"""

from __future__ import annotations

import contextlib
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from minigpt.checks import naming

WIDTH = 83  # columns: nbgrader cuts what is longer
VAGUE = {  # ids that say too little for two of them to be one mistake
    "differs", "too-many", "too-few", "wrong-type", "wrong-dtype", "wrong-shape", "missing", "refused", "not-refused",
    "not-written",
}  # fmt: skip


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
        return wrapped(f"{type(self).__name__}: {self}").splitlines()


def wrapped(text: str) -> str:
    """Lines of ``WIDTH`` columns, with a hanging indent, so that one sees where the next sentence begins.

    What is indented already is code, and stays.
    """
    fill = textwrap.TextWrapper(WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False).fill
    return "\n".join(line if line.startswith(" ") else fill(line) for line in text.splitlines())


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
        with naming.part():
            for case in self.cases:
                self.check(*self.answers, *case, **self.options)


Needs = Callable[[], Mapping[str, Part]]  # the earlier parts that a check leans on, by their names


def part(
    points: float, check: Callable, *answers: Callable, each: Iterable | None = None,
    after: tuple[Part, ...] | Part = (), **options,
) -> Part:  # fmt: skip
    """``check(*answers, case, **options)`` for each case, or once without one."""
    cases = [()] if each is None else [(case,) for case in each]
    return Part(points, check, answers, cases, options, (after,) if isinstance(after, Part) else after)


def score(passed: str, *parts: Part, needs: Needs | None = None) -> Points | None:
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
    verdict = _together([*_earlier(needs), *verdicts])
    earned = sum(each.points for each in parts if each not in failed)
    if not earned:
        raise verdict
    print(f"{earned:g} of {sum(each.points for each in parts):g} points\n{wrapped(str(verdict))}")
    return Points(earned, verdict)


def _together(verdicts: list[tuple[str, str]]) -> Wrong:
    """One verdict of several (id, sentence). A mistake that one part has named, the next does not tell again."""
    ids, sentences, again = dict.fromkeys("+".join(id for id, _ in verdicts).split("+")), [], 0
    told: set[str] = set()
    for id, sentence in verdicts:
        mistakes = set(id.split("+"))
        if sentence in sentences:
            continue
        if told >= mistakes and not any(id.startswith("raises-") or id in VAGUE for id in mistakes):
            again += 1
        else:
            sentences.append(sentence)
        told |= mistakes
    if again:
        sentences.append(f"{'Another case is' if again == 1 else f'{again} other cases are'} wrong in the same way.")
    return Wrong("+".join(ids), "\n".join(sentences))


def _earlier(needs: Needs | None) -> list[tuple[str, str]]:
    """(id, sentence) of the first earlier part that is wrong, if one is."""
    for name, each in needs().items() if needs else ():
        try:
            each.judge()
        except Wrong as wrong:
            return [("earlier-part", f"{name} has not passed yet: {wrong}\nThis may follow from it:")]
    return []


@contextlib.contextmanager
def judging(sentence: str, needs: Needs | None = None) -> Iterator[None]:
    """Around the check of a run, which compares and asserts by itself: prints ``sentence`` if all of it is right.

    An ``assert`` in it is a verdict too, and so is a name that a function of the notebook looks for and does not find.
    """
    try:
        yield
    except NameError as error:
        verdict = Wrong("not-run", f"there is no {error.name} yet: run all cells above this one, in order")
    except Wrong as wrong:
        verdict = wrong
    except AssertionError as error:
        verdict = Wrong("required", str(error) or "something that the check asserts does not hold")
    else:
        passed(sentence)
        return
    raise _together([*_earlier(needs), (verdict.id, str(verdict))])


def passed(what: str) -> None:
    """The one line that a passed check prints."""
    print(f"Passed: {what}")
