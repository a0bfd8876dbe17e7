"""Random models and plans, predicted and measured: ``python -m tools.fuzz --minutes 5 --seed 0``.

Each case is a small model with any field of its configuration away from its default, and any plan: ``fuzz_space``.
It is predicted; unless that is refused, the real step is run under the meter, on real CPU tensors or on fake ones:

    exact         weights, gradients, optimizer, activations, peak, and the largest instant of each phase, to the byte
    close         the first three to the byte, the others within 0.1%
    different     a finding; it is made smaller, field by field, and printed with the command that shows it again
    refused       predict raised ValueError: counted by the field that it names
    not measured  measure raised ValueError, or transformers cannot build or run such a model
    crashed       predict or measure raised anything else: a finding too

The same seed gives the same cases. It stops on time; an interrupt ends it with its summary.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import logging
import random
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from minigpt.memory import Architecture, StepMemory, TrainingPlan, predict
from tools.fuzz_space import FAMILIES, as_model, draw_case, draw_model

EXACTLY = ("weights", "gradients", "optimizer", "frozen")
CLOSELY = ("activations", "peak", "forward", "backward", "step")
TOLERANCE = 0.001
KINDS = ("exact", "close", "different", "refused", "not measured", "crashed")
MOST_TRIES = 60  # runs spent on making one difference smaller


@dataclass(frozen=True)
class Outcome:
    """What became of one case. ``found``: {quantity: (predicted, measured)} where both ran."""

    kind: str
    reason: str = ""
    found: dict[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def off(self) -> tuple[str, ...]:
        """The quantities that make the difference."""
        return tuple(name for name, (p, m) in self.found.items() if _share(name, p, m) > TOLERANCE)


def _share(name: str, predicted: int, measured: int) -> float:
    if name in EXACTLY:
        return float(predicted != measured)
    return abs(predicted - measured) / max(measured, 1)


def quantities(step: StepMemory) -> dict[str, int]:
    """What is compared, in bytes: the buckets, the peak, and the largest instant of each phase."""
    phases, total = dict.fromkeys(("before", "forward", "backward", "step"), 0), 0
    for phase, _, change in step.events:
        phases[phase] = max(phases[phase], total, total + change)  # what a phase finds counts, too
        total += change
    del phases["before"]
    phases["step"] = max(phases["step"], total)  # a fused step makes nothing
    ledger = step.ledger
    return dict(
        weights=ledger.weights, gradients=ledger.gradients, optimizer=ledger.optimizer, frozen=step.frozen,
        activations=ledger.activations, peak=step.peak.total, **phases,
    )  # fmt: skip


def run_case(case: dict) -> Outcome:
    """Predict, measure, compare. The same case gives the same outcome."""
    try:
        model = as_model(copy.deepcopy(case["model"]))  # transformers writes into a file's dictionaries
        plan = TrainingPlan(**case["plan"])
        predicted = quantities(predict(model, plan))
    except ValueError as error:
        return Outcome("refused", str(error))
    except Exception as error:
        return Outcome("crashed", f"predict: {_last_line(error)}")
    import torch

    from minigpt.memory.measured.step import measure

    torch.manual_seed(0)
    try:
        measured = quantities(measure(model, plan, case["device"]))
    except ValueError as error:
        return Outcome("not measured", str(error))
    except Exception as error:
        return Outcome("crashed", f"measure: {_last_line(error)}")
    found = {name: (predicted[name], measured[name]) for name in EXACTLY + CLOSELY}
    if all(p == m for p, m in found.values()):
        return Outcome("exact", found=found)
    return Outcome("different" if Outcome("", found=found).off else "close", found=found)


def _last_line(error: Exception) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{'/'.join(frame.filename.split('/')[-2:])}:{frame.lineno}"
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]} ({where})"


# ------------------------------------------------------------ making a difference smaller


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


KEPT = ("model_type", "batch", "seq_len", "pad_token_id", "bos_token_id", "eos_token_id")
SIZES = ("size", "_layer", "_head", "embd", "inner", "context", "positions", "rank", "dim", "experts", "group")


def is_size(name: str) -> bool:
    """Whether a field is a size, whose default is a large model's."""
    return any(part in name for part in SIZES) and name not in (
        "max_window_layers",
        "mlp_only_layers",
        "no_rope_layers",
    )


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


def settings(case: dict) -> dict:
    """What is away from its default, sizes apart: the likely cause."""
    both = {k: v for k, v in case["model"].items() if v is not None and "pdrop" not in k} | case["plan"]
    return {k: v for k, v in both.items() if k not in KEPT and not is_size(k)}


# ------------------------------------------------------------ many cases


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


class Fuzz:
    """One run: the counts, and the findings in groups."""

    def __init__(self, seed: int, families: list[str], until: float) -> None:
        self.seed, self.families, self.until = seed, families, until
        self.kinds: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()
        self.unmeasured: Counter[str] = Counter()
        self.groups: list[Group] = []
        self.started = time.monotonic()

    def run(self, cases: int) -> None:
        """Cases until there are so many, the time is over, or an interrupt."""
        for index in range(cases):
            if time.monotonic() > self.until:
                return
            rng = random.Random(f"{self.seed} {index}")
            self.take(draw_case(rng.choice, self.families))

    def take(self, case: dict) -> None:
        outcome = run_case(case)
        self.kinds[outcome.kind] += 1
        if outcome.kind == "refused":
            self.refusals[_field(outcome.reason)] += 1
        elif outcome.kind == "not measured":
            self.unmeasured[outcome.reason.split("\n")[0][:100]] += 1
        elif outcome.kind in ("different", "crashed"):
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
        for title, counter in (("refused, by field", self.refusals), ("not measured", self.unmeasured)):
            if counter:
                lines += [f"{title}:", *(f"  {count:>6}  {name}" for name, count in counter.most_common())]
        if self.groups:
            lines.append("findings:")
        for group in sorted(self.groups, key=lambda group: -group.cases):
            lines += [f"  {group.cases:>6}  {group.case['model']['model_type']} {settings(group.case)}",
                      f"          {_brief(group.outcome)}", f"          {command(group.case)}"]  # fmt: skip
        return "\n".join(lines)


def _field(reason: str) -> str:
    """The field that a refusal names first."""
    return reason.split(" is ")[0].split(" has ")[0][:60]


def _brief(outcome: Outcome) -> str:
    if outcome.kind == "crashed":
        return outcome.reason
    found = outcome.found
    return ", ".join(f"{name} {found[name][0] - found[name][1]:+,} of {found[name][1]:,} B" for name in outcome.off)


def command(case: dict) -> str:
    return f"python -m tools.fuzz --show '{json.dumps(case)}'"


def describe(case: dict, outcome: Outcome) -> str:
    """One case in full: both columns and the command."""
    lines = [f"{outcome.kind}: {case['model']['model_type']} {settings(case)} on {case['device']}"]
    if outcome.reason:
        lines.append(f"  {outcome.reason}")
    for name, (predicted, measured) in outcome.found.items():
        mark = "  <--" if name in outcome.off else ""
        lines.append(f"  {name:<12}{predicted:>14,}{measured:>14,}{predicted - measured:>+12,} B{mark}")
    return "\n".join([*lines, f"  {command(case)}"])


def known_families() -> list[str]:
    """The families that the predictor has."""
    known = []
    for family in FAMILIES:
        try:
            if family != "minigpt":
                Architecture.of({"model_type": family})
            known.append(family)
        except ValueError as error:
            if not str(error).startswith("model_type"):
                known.append(family)
    return known


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--cases", type=int, default=10**9, help="stop after so many, if the time is not over before")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--family", action="append", choices=FAMILIES, help="only this; may stand several times")
    parser.add_argument("--show", metavar="JSON", help="run one case again and print all of it")
    options = parser.parse_args(arguments)
    with quick_and_quiet():
        if options.show:
            case = json.loads(options.show)
            outcome = run_case(case)
            print(describe(case, outcome))
            return int(outcome.kind in ("different", "crashed"))
        fuzz = Fuzz(options.seed, options.family or known_families(), time.monotonic() + 60 * options.minutes)
        interrupted = False
        try:
            fuzz.run(options.cases)
        except KeyboardInterrupt:
            interrupted = True
        print(fuzz.summary())
        return 130 if interrupted else int(bool(fuzz.groups))


@contextlib.contextmanager
def quick_and_quiet():
    """One thread, no compiler (bitsandbytes' would compile for each new shape), no advice about odd models."""
    import torch
    import torch._dynamo
    from transformers.utils import logging as transformers_logging

    threads, compiler, advice = torch.get_num_threads(), torch._dynamo.config, transformers_logging.get_verbosity()
    disabled, compiler.disable = compiler.disable, True
    torch.set_num_threads(1)
    transformers_logging.set_verbosity_error()
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.set_num_threads(threads)
        compiler.disable = disabled
        transformers_logging.set_verbosity(advice)
        logging.disable(logging.NOTSET)


if __name__ == "__main__":
    sys.exit(main())
