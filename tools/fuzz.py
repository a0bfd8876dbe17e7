"""Random models and plans, predicted and measured: ``python -m tools.fuzz --cases 2000 --seed 0``.

Each case is a small model with any field of its configuration away from its default, and any plan: ``fuzz_space``.
It is predicted, and the real step is run under the meter, on real CPU tensors or on fake ones: ``fuzz_case`` says what
can come out. A difference is made smaller, field by field, and printed with the command that shows it again:
``fuzz_smaller``.

The same seed gives the same cases, however many processes share them. ``--minutes`` stops on time, with or without a
number of cases; an interrupt ends a run with its summary.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import random
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import count, islice

from tools.fuzz_case import FINDINGS, KINDS, Outcome, brief, command, describe, quick_and_quiet, run_case, settings
from tools.fuzz_smaller import Group, shrink
from tools.fuzz_space import FAMILIES, draw_case

MINUTES = 5.0  # if neither a time nor a number is asked for
REASONS = {  # what else is counted, by the field that is named
    "refused": "refused, but runs in reality",
    "impossible": "refused, and the libraries refuse it too",
    "not measured": "predicted, but not measured",
}
AHEAD = 8  # cases that each process has waiting, while a difference is made smaller


def nth(seed: int, index: int, families: list[str]) -> tuple[dict, Outcome]:
    """The case of this number, and what became of it."""
    case = draw_case(random.Random(f"{seed} {index}").choice, families)
    return case, run_case(case)


def _nth_quietly(*which) -> tuple[dict, Outcome]:
    with quick_and_quiet():
        return nth(*which)


def outcomes(seed: int, families: list[str], jobs: int) -> Iterator[tuple[dict, Outcome]]:
    """Case after case, without end, in the order of their numbers."""
    if jobs == 1:
        yield from (nth(seed, index, families) for index in count())
        return
    spawned = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=spawned) as pool:
        numbers = count()
        waiting = deque(pool.submit(_nth_quietly, seed, next(numbers), families) for _ in range(AHEAD * jobs))
        try:
            while True:
                found = waiting.popleft().result()
                waiting.append(pool.submit(_nth_quietly, seed, next(numbers), families))
                yield found
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


class Fuzz:
    """One run: the counts, and the findings in groups."""

    def __init__(self, seed: int, until: float) -> None:
        self.seed, self.until = seed, until
        self.kinds: Counter[str] = Counter()
        self.reasons: dict[str, Counter[str]] = {kind: Counter() for kind in REASONS}
        self.groups: list[Group] = []
        self.started = time.monotonic()

    def run(self, found: Iterator[tuple[dict, Outcome]]) -> None:
        """Takes cases until there are no more, the time is over, or an interrupt."""
        while time.monotonic() <= self.until and (one := next(found, None)):
            self.take(*one)

    def take(self, case: dict, outcome: Outcome) -> None:
        self.kinds[outcome.kind] += 1
        if outcome.kind in REASONS:
            self.reasons[outcome.kind][_field(outcome.reason)] += 1
        if outcome.kind in FINDINGS:
            group = next((group for group in self.groups if group.explains(case, outcome)), None)
            if group is not None:
                group.cases += 1
                return
            self.groups.append(Group(*shrink(case, outcome, self.until)))
            print(describe(self.groups[-1].case, self.groups[-1].outcome) + "\n", flush=True)

    def summary(self) -> str:
        seconds, total = time.monotonic() - self.started, self.kinds.total()
        lines = [f"{total} cases in {seconds:.0f} s, {total / max(seconds, 1e-9):.1f} a second, seed {self.seed}"]
        lines += [f"  {kind:<13}{self.kinds[kind]:>6} {self.kinds[kind] / max(total, 1):>7.1%}" for kind in KINDS]
        for kind, title in REASONS.items():
            if self.reasons[kind]:
                lines += [f"{title}:", *(f"  {n:>6}  {name}" for name, n in self.reasons[kind].most_common())]
        if self.groups:
            lines.append("findings:")
        for group in sorted(self.groups, key=lambda group: -group.cases):
            lines += [f"  {group.cases:>6}  {group.case['model']['model_type']} {settings(group.case)}",
                      f"          {brief(group.outcome)}", f"          {command(group.case)}"]  # fmt: skip
        return "\n".join(lines)


def _field(reason: str) -> str:
    """The field that a refusal names first."""
    return reason.split("\n")[0].split(" is ")[0].split(" has ")[0][:60]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, help="stop after so many")
    parser.add_argument("--minutes", type=float, help=f"stop after so long; {MINUTES:g} if no --cases are given")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=_processors(), help="processes; by default one a processor")
    parser.add_argument("--family", action="append", choices=FAMILIES, help="only this; may stand several times")
    parser.add_argument("--show", metavar="JSON", help="run one case again and print all of it")
    options = parser.parse_args(arguments)
    for name in ("cases", "jobs"):
        if (number := getattr(options, name)) is not None and number < 1:
            parser.error(f"--{name} is {number}; it must be at least 1")
    with quick_and_quiet():
        if options.show:
            case = json.loads(options.show)
            outcome = run_case(case)
            print(describe(case, outcome))
            return int(outcome.kind in FINDINGS)
        minutes = options.minutes if options.minutes is not None else math.inf if options.cases else MINUTES
        fuzz = Fuzz(options.seed, time.monotonic() + 60 * minutes)
        interrupted = False
        found = outcomes(options.seed, options.family or list(FAMILIES), options.jobs)
        try:
            fuzz.run(islice(found, options.cases))
        except KeyboardInterrupt:
            interrupted = True
        print(fuzz.summary())
        return 130 if interrupted else int(bool(fuzz.groups))


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


if __name__ == "__main__":
    sys.exit(main())
