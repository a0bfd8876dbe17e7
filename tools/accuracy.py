"""Prediction against measurement, case by case, and against published readings of real GPUs: ``make accuracy``.

Every case (``tools.cases``) builds the real model (MiniGPT's code, or transformers'), trains it for two steps and
meters the second; the prediction never sees it. All run on real CPU tensors, which for models so small take a fifth of
the time of fake ones; each N-th runs on those too, if it can. Several ranks are as many processes.
What predict refuses is counted and named. Processors share the work.

At the end, ten models that predict does not know are measured as large as they are, on fake tensors.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from statistics import median

from tqdm import tqdm

from minigpt.memory import BUCKETS, StepMemory, TrainingPlan, predict, predict_evaluation
from minigpt.memory.predicted.sharded import rank
from minigpt.memory.units import gb
from tools.cases import Case, groups
from tools.fuzz_case import quick_and_quiet
from tools.models import MEASURED_ONLY, MODELS
from tools.published import compare_published, near, table

PERSISTENT = ("weights", "gradients", "optimizer")
TOLERANCE = 0.001  # of activations and peak
AT_A_TIME = 16  # cases of several ranks for which processes are started once
LARGE = TrainingPlan(batch=2, seq_len=64, precision="bf16")  # mamba's scan takes a second for each token


@dataclass(frozen=True)
class Row:
    """One comparison. ``found`` is empty where ``refused`` says why, or ``failed`` what broke."""

    group: str
    case: Case
    device: str
    found: dict[str, tuple[int, float]] = field(default_factory=dict)
    refused: str = ""
    failed: str = ""


def compare(case: Case, device: str) -> tuple[StepMemory, StepMemory]:
    """(predicted, measured). Raises ValueError for what either refuses."""
    from minigpt.memory.measured.evaluation import measure_evaluation
    from minigpt.memory.measured.step import measure

    model, asked = MODELS[case.model], dict(case.evaluation)
    if asked:
        return predict_evaluation(model, case.plan, **asked), measure_evaluation(
            model, case.plan, **asked, device=device
        )
    return predict(model, case.plan), measure(model, case.plan, device)


def errors(predicted: StepMemory, measured: StepMemory) -> dict[str, tuple[int, float]]:
    """(bytes, share) that the prediction is above the measurement: for each bucket but temporary, and the peak."""
    pairs = {b: (getattr(predicted.ledger, b), getattr(measured.ledger, b)) for b in BUCKETS if b != "temporary"}
    pairs["peak"] = (predicted.peak.total, measured.peak.total)
    return {name: (p - m, (p - m) / m if m else float(p != m)) for name, (p, m) in pairs.items()}


def run_case(job: tuple[str, Case, str]) -> Row:
    """The comparison of a group's case on a device."""
    try:
        return Row(*job, found=errors(*compare(*job[1:])))
    except ValueError as refusal:
        return Row(*job, refused=" ".join(str(refusal).split()))
    except Exception as error:
        return Row(*job, failed=f"{type(error).__name__}: {' '.join(str(error).split())}")


def run_ranks(group: str, cases: list[Case]) -> Iterator[Row]:
    """The comparisons of cases with several ranks, each of the rank that differs most. What predict refuses is not run:
    an error of a case ends all of a launch."""
    from minigpt.memory.measured.ranks import measure_many_ranks

    told: dict[str, list[StepMemory]] = {}
    for case in cases:
        try:
            told[str(case)] = [rank(MODELS[case.model], case.plan, i) for i in range(case.plan.ranks)]
        except ValueError as refusal:
            yield Row(group, case, "cpu", refused=" ".join(str(refusal).split()))
    left = [case for case in cases if str(case) in told]
    for at in range(0, len(left), AT_A_TIME):
        some = left[at : at + AT_A_TIME]
        try:
            measured = measure_many_ranks({str(case): (MODELS[case.model], case.plan) for case in some})
        except Exception as error:
            text = f"{type(error).__name__}: {' '.join(str(error).split())}"
            yield from (Row(group, case, "cpu", failed=text) for case in some)
            continue
        yield from (_of_ranks(group, case, told[str(case)], measured[str(case)]) for case in some)


def _of_ranks(group: str, case: Case, told: list[StepMemory], measured: list[StepMemory] | ValueError) -> Row:
    if isinstance(measured, ValueError):
        return Row(group, case, "cpu", refused=" ".join(str(measured).split()))
    found = map(errors, told, measured)
    return Row(group, case, "cpu", found=max(found, key=lambda one: max(abs(size) for size, _ in one.values())))


def run_large(config: dict) -> str:
    """A model that predict does not know: what its step takes, and how long that took to measure."""
    from minigpt.memory.measured.step import measure

    began = time.perf_counter()
    step = measure(dict(config), LARGE)  # transformers writes into a file's dictionary
    seconds = time.perf_counter() - began
    name, weights, peak = config["model_type"], gb(step.ledger.weights), gb(step.peak.total)
    return f"{name:<14} {weights:>12} {peak:>12}  {seconds:>5.1f} s  {step.peak_at}"


def shared(function: Callable, jobs: Iterable, unit: str) -> Iterator:
    """``function`` of every job, in order, from as many processes as there are processors, of one thread each."""
    jobs, processes = list(jobs), len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    spawned = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=spawned) as pool:
        yield from tqdm(pool.map(partial(_quietly, function), jobs), total=len(jobs), unit=unit)


def _quietly(function: Callable, job):
    with quick_and_quiet():
        return function(job)


def report(rows: list[Row]) -> str:
    """A line for each group; where not all of it is exact, one for each quantity that is not. Then the refusals."""
    lines = [f"{'':<44} {'cases':>5} {'fake':>5} {'refused':>7} {'exact':>6} {'median':>8} {'worst':>8}  worst case"]
    for group in dict.fromkeys(row.group for row in rows):
        own = [row for row in rows if row.group == group]
        ran = [row for row in own if row.found]
        counts = (
            f"{len(own):>5} {sum(row.device == 'fake' for row in own):>5} {sum(bool(row.refused) for row in own):>7}"
        )
        off = [name for name in (ran[0].found if ran else ()) if any(row.found[name][0] for row in ran)]
        for name in off:
            worst = max(ran, key=lambda row: abs(row.found[name][1]))
            exact, middle = sum(not row.found[name][0] for row in ran), median(abs(row.found[name][1]) for row in ran)
            (difference, share), label = worst.found[name], f"{group}: {name}"
            numbers = f"{exact:>6} {middle:>8.3%} {abs(share):>8.3%}"
            lines.append(f"{label:<44} {counts} {numbers}  {worst.case} ({difference:+,} B, {worst.device})")
        if not off:
            lines.append(f"{group:<44} {counts} {len(ran):>6} {0:>8.3%} {0:>8.3%}")
    reasons = Counter(row.refused for row in rows if row.refused)
    lines += ["", f"{'refused':>7}  why", *(f"{count:>7}  {reason:.150}" for reason, count in reasons.most_common())]
    lines += [f"failed: {row.case} on {row.device}: {row.failed:.300}" for row in rows if row.failed]
    return "\n".join(lines)


def holds(rows: list[Row]) -> bool:
    """Whether nothing failed, every bucket that stays is exact, and activations and peak are within the tolerance."""
    return not any(row.failed for row in rows) and all(
        difference == 0 if name in PERSISTENT else abs(share) <= TOLERANCE
        for row in rows
        for name, (difference, share) in row.found.items()
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.accuracy", description=__doc__.splitlines()[0])
    parser.add_argument("--every", type=int, default=4, metavar="N", help="run each N-th case on fake tensors too")
    parser.add_argument("--group", default="", help="only groups whose name begins so")
    options = parser.parse_args()
    every, chosen = options.every, {k: v for k, v in groups().items() if k.startswith(options.group)}
    if every < 1:
        print(f"error: --every is {every}; it must be at least 1", file=sys.stderr)
        return 2
    if not chosen:
        print(f"error: --group is {options.group!r}; allowed: {', '.join(groups())}", file=sys.stderr)
        return 2
    began = time.perf_counter()
    published = compare_published()
    print(table(published) + "\n")
    sharded = chosen.pop("sharded", [])
    jobs = [(group, case, "cpu") for group, some in chosen.items() for case in some]
    jobs += [(group, case, "fake") for group, case, _ in jobs[::every] if not case.needs_values]
    rows = list(shared(run_case, jobs, "case"))
    rows += tqdm(run_ranks("sharded", sharded), total=len(sharded), unit="case")
    print(report(rows) + "\n")
    cases = len({job[1] for job in jobs}) + len(sharded)
    print(
        f"{'measured only':<14} {'weights':>12} {'peak':>12}  {'took':>7}  {LARGE.batch}x{LARGE.seq_len}, bf16, peak in"
    )
    print("\n".join(shared(run_large, MEASURED_ONLY, "model")) + "\n")
    print(f"{cases:,} cases, {len(jobs) + len(sharded):,} comparisons, {time.perf_counter() - began:.0f} s")
    held = holds(rows)
    print("weights, gradients and optimizer exact, activations and peak within 0.1%: " + ("yes" if held else "NO"))
    close = near(published)
    what = "published peaks within 3% in the median and 10% at worst, reserved memory 2% and 8% in 9 of 10"
    print(f"{what}: " + ("yes" if close else "NO"))
    return 0 if held and close else 1


if __name__ == "__main__":
    sys.exit(main())
