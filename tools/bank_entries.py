"""What a lab's bank says, read: the wrong and the right answers to its exercises. tools/bank.py tries them.

A bank lies beside the lab's text, ``content/labs/labNN-name.bank.py``, and is never released. It is a list of the
mistakes that people make, a section for each exercise:

    # %% four-bit-bytes
    # wrong: rounds down -> short-block-lost
    #     `-(-n // block)` => `n // block`
    # wrong: 16-bit scales -> two-byte-absmax, keeps 1
    #     `4 * blocks` => `2 * blocks`

The line of an answer says in words what is wrong, by its id what the check must say of it (``checks.Wrong``; several
joined by "+"), and the points that it keeps, where that is not 0. Below it stands what it changes in the instructor's
solution, from ``### BEGIN SOLUTION`` to ``### END SOLUTION``: text that is there once, and what takes its place;
``every`` before it where it is there more often. All edits of an answer are made at the same time, so two may swap.

Where the mistake is another way of writing, the answer itself stands there instead, and so it does below every right
one, which is there to be unlike the solution. It defines what it has otherwise, and no more: of a cell with three
functions it may give one.

    # wrong: asks the course -> asks-course
    def four_bit_bytes(n, block, double):
        ...


    # right: math.ceil
    ...
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ID = r"[a-z0-9-]+([+][a-z0-9-]+)*"
HEADER = re.compile(r"\s*#\s*(%%|(wrong|right)\s*:)", re.IGNORECASE)  # any that looks like one: none is taken for code
SECTION = re.compile(r"# %% ([a-z0-9-]+)")
ANSWER = re.compile(
    rf"# (?P<kind>wrong|right): (?P<title>.+?)( -> (?P<verdict>{ID})(, keeps (?P<points>[0-9]+([.][0-9]+)?))?)?"
)
EDIT = re.compile(r"#     (?P<every>every )?`(?P<old>[^`]+)` => `(?P<new>[^`]*)`")
SOLUTION = re.compile(r"(?<=### BEGIN SOLUTION\n).*?(?=### END SOLUTION)", re.DOTALL)


@dataclass(frozen=True)
class Entry:
    """One answer of a bank. ``verdict`` is empty exactly for a right one."""

    exercise: str
    title: str  # the mistake in words, or how the answer is written
    code: str
    verdict: frozenset[str] = frozenset()  # ids
    points: float = 0  # that a wrong answer keeps

    @property
    def kind(self) -> str:
        return "wrong" if self.verdict else "right"


def read_bank(path: Path, solutions: dict[str, str]) -> list[Entry]:
    """The entries of one bank, in order; ``solutions`` has the instructor's cell of every exercise.

    Raises ValueError naming the file and the line of what cannot be read, or does not fit the solution.
    """
    text = path.read_text(encoding="utf8")
    try:
        return _entries(text, solutions)
    except _Refused as error:
        raise ValueError(f"{path.name}, line {error.line}: {error}") from None


class _Refused(ValueError):
    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line


def _entries(text: str, solutions: dict[str, str]) -> list[Entry]:
    lines = text.splitlines()
    starts = [number for number, line in enumerate(lines, 1) if HEADER.match(line)]
    if not starts:
        raise _Refused(1, "it has no section; each begins with a line '# %% EXERCISE'")
    for number, line in enumerate(lines[: starts[0] - 1], 1):
        if line and not line.startswith("#"):
            raise _Refused(number, "an answer begins with a line of its own, below that of its exercise")
    entries, exercise = [], ""
    for start, end in zip(starts, [*starts[1:], len(lines) + 1]):
        below = lines[start : end - 1]
        if section := SECTION.fullmatch(lines[start - 1]):
            exercise = section[1]
            if exercise not in solutions:
                raise _Refused(start, f"there is no exercise {exercise!r}; there is {', '.join(solutions)}")
            if any(below):
                raise _Refused(start, "the first answer of a section must follow at once")
            continue
        found = ANSWER.fullmatch(lines[start - 1])
        if not found or not exercise or (found["kind"] == "wrong") != bool(found["verdict"]):
            raise _Refused(start, "write '# %% EXERCISE', and below it '# wrong: TITLE -> VERDICT' or '# right: TITLE'")
        if not any(below):
            raise _Refused(start, "no answer follows, and no edit of the solution")
        code = "\n".join(below).strip("\n") + "\n"
        if any(line.startswith("#") for line in below):
            if found["kind"] == "right":
                raise _Refused(start, "a right answer is written as a whole, and has no comment at its left")
            code = _edited(solutions[exercise], start, below)
        verdict = frozenset(found["verdict"].split("+")) if found["verdict"] else frozenset()
        entries.append(Entry(exercise, found["title"], code, verdict, float(found["points"] or 0)))
    return entries


def _edited(solution: str, start: int, lines: list[str]) -> str:
    """The instructor's cell with the edits in these lines, which follow line ``start``, all made at the same time."""
    regions = "\n".join(SOLUTION.findall(solution))
    edits: dict[str, str] = {}
    places = 0
    for number, line in enumerate(lines, start + 1):
        if not line:
            continue
        edit = EDIT.fullmatch(line)
        if not edit:
            raise _Refused(number, "write '#     `OLD` => `NEW`', and no code where there is such a line")
        old, new, times = edit["old"], edit["new"], regions.count(edit["old"])
        if (times < 2) if edit["every"] else (times != 1):
            often = "more than once after 'every'" if edit["every"] else "once, or 'every' is said"
            raise _Refused(number, f"`{old}` is in the solution {times} times; it must be there {often}")
        if old == new or old in edits:
            raise _Refused(number, f"`{old}` => `{new}` changes nothing" if old == new else f"`{old}` is edited twice")
        edits[old], places = new, places + times
    pattern = re.compile("|".join(re.escape(old) for old in edits))
    if len(pattern.findall(regions)) != places:
        raise _Refused(start, "two edits meet in the same text; make them one")
    return SOLUTION.sub(lambda region: pattern.sub(lambda place: edits[place[0]], region[0]), solution)
