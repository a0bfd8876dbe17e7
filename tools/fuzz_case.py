"""One case of the fuzzer: predicted, measured, compared; and how it is printed.

exact         weights, gradients, optimizer, activations, peak, and the largest instant of each phase, to the byte
close         the first three to the byte, the others within 0.1%
different     a finding
refused       predict raised ValueError, although the step runs
impossible    predict raised ValueError, and so do the libraries: the plan is none, or their step breaks
not measured  measure alone raised ValueError
crashed       predict or measure raised anything else: a finding too
"""

from __future__ import annotations

import contextlib
import copy
import json
import logging
import traceback
import warnings
from dataclasses import dataclass, field

from minigpt.memory import StepMemory, TrainingPlan, predict
from tools.fuzz_space import as_model

EXACTLY = ("weights", "gradients", "optimizer", "frozen")
CLOSELY = ("activations", "peak", "forward", "backward", "step")
TOLERANCE = 0.001
KINDS = ("exact", "close", "different", "refused", "impossible", "not measured", "crashed")
FINDINGS = ("different", "crashed")


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
        plan = TrainingPlan(**case["plan"])
    except ValueError as error:
        return Outcome("impossible", str(error))
    predicted, refusal = None, ""
    try:
        predicted = quantities(predict(_model(case), plan))
    except ValueError as error:
        refusal = str(error)
    except Exception as error:
        return Outcome("crashed", f"predict: {_last_line(error)}")
    try:
        measured = quantities(_measured(case, plan))
    except Exception as error:
        if predicted is None:
            return Outcome("impossible", refusal)
        if isinstance(error, ValueError):
            return Outcome("not measured", str(error))
        return Outcome("crashed", f"measure: {_last_line(error)}")
    if predicted is None:
        return Outcome("refused", refusal)
    found = {name: (predicted[name], measured[name]) for name in EXACTLY + CLOSELY}
    if all(p == m for p, m in found.values()):
        return Outcome("exact", found=found)
    return Outcome("different" if Outcome("", found=found).off else "close", found=found)


def _model(case: dict):
    return as_model(copy.deepcopy(case["model"]))  # transformers writes into a file's dictionaries


def _measured(case: dict, plan: TrainingPlan) -> StepMemory:
    import torch

    from minigpt.memory.measured.step import measure

    torch.manual_seed(0)
    return measure(_model(case), plan, case["device"])


def _last_line(error: Exception) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{'/'.join(frame.filename.split('/')[-2:])}:{frame.lineno}"
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]} ({where})"


# ------------------------------------------------------------ printed

KEPT = ("model_type", "batch", "seq_len", "pad_token_id", "bos_token_id", "eos_token_id")
SIZES = ("size", "_layer", "_head", "embd", "inner", "context", "positions", "rank", "dim", "experts", "group")


def is_size(name: str) -> bool:
    """Whether a field is a size, whose default is a large model's."""
    return any(part in name for part in SIZES) and name not in (
        "max_window_layers",
        "mlp_only_layers",
        "no_rope_layers",
    )


def settings(case: dict) -> dict:
    """What is away from its default, sizes apart: the likely cause."""
    both = {k: v for k, v in case["model"].items() if v is not None and "pdrop" not in k} | case["plan"]
    return {k: v for k, v in both.items() if k not in KEPT and not is_size(k)}


def brief(outcome: Outcome) -> str:
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
