"""A finding of the fuzzer made smaller, field by field, and findings with one cause put together."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from tools.fuzz_case import KEPT, Outcome, is_size, run_case, settings
from tools.fuzz_space import draw_model

MOST_TRIES = 60  # runs spent on making one difference smaller


def shrink(case: dict, outcome: Outcome, until: float) -> tuple[dict, Outcome]:
    """A case with as many fields as possible at their defaults that is off in the same quantity."""
    tries, smaller = 0, True
    while smaller:
        smaller = False
        for candidate in _simpler(case):
            tries += 1
            if tries > MOST_TRIES or time.monotonic() > until:
                return case, outcome
            result = run_case(candidate)
            if result.kind == outcome.kind and (result.reason == outcome.reason or set(result.off) & set(outcome.off)):
                case, outcome, smaller = candidate, result, True
                break
    return case, outcome


def _simpler(case: dict) -> Iterator[dict]:
    """The case with one thing less: sizes of the plainest model of the family, a word or a field at its default."""
    model, plan = case["model"], case["plan"]
    plain = draw_model(lambda options: options[0], model["model_type"])
    sizes = {name: value for name, value in plain.items() if is_size(name) and model.get(name) != value}
    for some in [sizes, *({name: value} for name, value in sizes.items())] if sizes else []:
        yield {**case, "model": {**model, **some}}
    for name in list(plan):
        if name not in KEPT:
            yield {**case, "plan": {k: v for k, v in plan.items() if k != name}}
    for name in list(model):
        if name not in KEPT and not is_size(name):
            yield {**case, "model": {k: v for k, v in model.items() if k != name}}
    for name, value in (("batch", 1), ("seq_len", 2), ("seq_len", 16)):
        if plan[name] > value:
            yield {**case, "plan": {**plan, name: value}}


@dataclass
class Group:
    """Findings with one cause, as far as one can tell: the smallest, and how many were like it."""

    case: dict
    outcome: Outcome
    cases: int = 1

    def explains(self, case: dict, outcome: Outcome) -> bool:
        mine, its = settings(self.case), settings(case)
        same_family = self.case["model"]["model_type"] == case["model"]["model_type"]
        if self.outcome.kind != outcome.kind or not (same_family or len(mine) > 1):
            return False
        if outcome.kind == "crashed":
            return self.outcome.reason == outcome.reason
        return all(its.get(k) == v for k, v in mine.items()) and bool(set(self.outcome.off) & set(outcome.off))
