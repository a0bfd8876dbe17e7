"""The ledger from a shell: ``python -m minigpt.memory qwen3-8b --like trl-sft --method qlora --card T4``.

The model is a known name, a size of MiniGPT, a Hub id or the path of a config.json. Every field of ``TrainingPlan`` is
an option, and its help is the field's own. Exit status: 0 if the step fits the card, and the evaluation if it is asked
for, or without a card; 1 if one does not; 2 for wrong use. With ``--write`` nothing is predicted: the plan is
written as a library's own file.
Imports no torch, unless the step is measured or the model is a MiniGPT.
"""

from __future__ import annotations

import argparse
import os
import sys
import textwrap
import time
from dataclasses import asdict, fields, replace
from typing import Any, NoReturn

from minigpt.console import show
from minigpt.memory.buckets import BUCKETS, StepMemory
from minigpt.memory.configurations import LIBRARIES, beside, write
from minigpt.memory.explain import as_dicts, explain, table
from minigpt.memory.families.architecture import Architecture
from minigpt.memory.fits import Verdict, fits, judge
from minigpt.memory.gpus import GPUS
from minigpt.memory.names import KNOWN, left_out, resolve
from minigpt.memory.plan import ALLOWED, TrainingPlan
from minigpt.memory.predicted.evaluation import predict_evaluation
from minigpt.memory.predicted.reserved import reserve
from minigpt.memory.predicted.sharded import communication
from minigpt.memory.predicted.step import predict
from minigpt.memory.readings import write_atomically
from minigpt.memory.recipes import APART, RECIPES
from minigpt.memory.room import beyond_context
from minigpt.memory.units import gb, gib, readable

MINIGPT = ("nano", "micro", "small")  # the sizes of the course's own model
EVALUATION = ("evaluate", "eval_batch", "eval_accumulation_steps", "prediction_loss_only")


class Parser(argparse.ArgumentParser):
    """argparse's, with help that a closed pipe does not break, and errors of one line."""

    def print_help(self, file=None) -> None:
        show(self.format_help().rstrip())

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {textwrap.shorten(message, 300)}; --help lists the options\n")


def make_parser() -> Parser:
    """The command's options; a field of the plan that is not given is left out of what it parses."""
    names = {
        "known models": textwrap.fill(", ".join(KNOWN), width=98),
        "MiniGPT, the course's own": ", ".join(MINIGPT),
        "known cards": ", ".join(GPUS),
    }
    parser = Parser(
        prog="python -m minigpt.memory",
        usage="%(prog)s MODEL [options]",
        description="Predict one training step's memory, and whether it fits a card.",
        epilog="\n\n".join(f"{what}:\n{textwrap.indent(which, '  ')}" for what, which in names.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("model", help="a known name, a Hub id, or the path of a config.json")
    parser.add_argument("--measure", action="store_true", help="run the step on fake tensors instead of predicting it")
    parser.add_argument("--tensors", action="store_true", help="list what is alive at the predicted peak")
    parser.add_argument(
        "--evaluate",
        type=int,
        metavar="SAMPLES",
        help="also Trainer's evaluation of so many sequences between two steps",
    )
    parser.add_argument("--eval-batch", type=int, metavar="VALUE", help="sequences at a time in it (default: 8)")
    parser.add_argument(
        "--eval-accumulation-steps", type=int, metavar="VALUE", help="batches after which it sends its logits away"
    )
    parser.add_argument("--prediction-loss-only", action="store_true", help="it gathers no logits")
    parser.add_argument("--json", action="store_true", help="print one JSON object: bytes as integers")
    parser.add_argument(
        "--write",
        metavar="LIBRARY",
        help=f"print the plan as a library's file instead: {', '.join(LIBRARIES)}; on stderr what it cannot say",
    )
    parser.add_argument("--to", metavar="FILE", help="where --write puts the file")
    add_plan(parser)
    return parser


def add_plan(parser: argparse._ActionsContainer) -> None:
    """An option for each field of the plan, and ``--like``; ``plan_of`` takes what they parse."""
    parser.add_argument("--like", metavar="LIBRARY", help=f"start from a library's defaults: {', '.join(RECIPES)}")
    for field in fields(TrainingPlan):
        option, default = "--" + field.name.replace("_", "-"), field.default
        allowed = f": {', '.join(ALLOWED[field.name])}" if field.name in ALLOWED else ""
        text = f"{field.metadata['help']}{allowed} (default: {default!r})".replace("%", "%%")
        if isinstance(default, bool):
            kind: dict[str, Any] = dict(action=argparse.BooleanOptionalAction)
        else:
            kind = dict(type=str if default is None else type(default), metavar="VALUE")
        parser.add_argument(option, default=argparse.SUPPRESS, help=text, **kind)


def plan_of(given: dict[str, Any], like: str | None) -> TrainingPlan:
    """The plan with these fields. Raises ValueError, naming the field, for one that cannot be."""
    return TrainingPlan(**given) if like is None else TrainingPlan.like(like, **given)


def main(arguments: list[str] | None = None) -> int:
    given = vars(make_parser().parse_args(arguments))
    names = ("model", "like", "measure", "tensors", "json", "write", "to")
    name, like, measured, tensors, as_json, library, path = (given.pop(name) for name in names)
    asked = {name: given.pop(name) for name in EVALUATION}
    try:
        model = model_of(name)
        plan = plan_of(given, like)
        if library is not None:
            others = {"measure": measured, "tensors": tensors, "json": as_json, **asked}
            return _written(model, plan, library, path, [name for name, value in others.items() if value])
        if path is not None:
            raise ValueError(f"to is {path!r}; it needs write, a library's name")
        report = _measured(model, plan) if measured else _predicted(model, plan)
        report["tensors"] = explain(model, plan) if tensors else ()
        report["sent"] = communication(model, plan) if plan.ranks > 1 else ()
        report["evaluation"] = _evaluated(model, plan, measured, **asked)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    dropout = left_out(name)
    report["model"] = name
    report["notes"] += [*([dropout] if dropout else []), *(APART[like] if like and not measured else ())]
    show(_json(report) if as_json else _text(report))
    steps = [step for step in (report["step"], report["evaluation"]) if step is not None]
    return 0 if plan.card is None or all(judge(step, plan).fits for step in steps) else 1


def _written(model, plan: TrainingPlan, library: str, path: str | None, others: list[str]) -> int:
    """Print the library's file, or put it at ``path``, whole or not at all. Returns the exit status."""
    if others:
        raise ValueError(f"write is {library!r}; with it {others[0]} has no effect: leave one of them out")
    architecture = Architecture.of(model)
    architecture.check(plan)
    text = write(plan, library, "Block" if architecture.family == "minigpt" else None)
    if path is None:
        show(text.rstrip("\n"))
    else:
        if os.path.exists(path or ".") and not os.path.isfile(path):  # such as /dev/null, which would be replaced
            raise ValueError(f"to is {path!r}, which cannot be written: it is no file")
        try:
            write_atomically(path, text)
        except OSError as error:
            raise ValueError(f"to is {path!r}, which cannot be written: {error.strerror}") from None
    print(*beside(plan, library), sep="\n", file=sys.stderr)
    return 0


def model_of(name: str):
    """What the command's word for a model means: the configuration of a size of MiniGPT, or the word itself."""
    if name.lower() not in MINIGPT:
        return name
    from minigpt.model import GPTConfig  # here, because it imports torch

    return GPTConfig.preset(name.lower())


def _predicted(model, plan: TrainingPlan) -> dict:
    architecture = Architecture.of(model)
    verdict = fits(architecture, plan) if plan.card else None
    step = verdict.step if verdict and verdict.step else predict(architecture, plan)
    warning = None if verdict else beyond_context(architecture, plan)
    cards = [] if verdict else _cards(step, plan, architecture)
    report = dict(parameters=architecture.parameters, plan=plan, step=step, verdict=verdict, cards=cards)
    return {**report, "notes": [f"warning: {warning}"] if warning else []}


def _measured(model, plan: TrainingPlan) -> dict:
    from minigpt.memory.measured.step import measure  # here, because it imports torch

    began = time.perf_counter()
    step = measure(_configuration(model), plan)
    note = f"measured, not predicted: a real step on fake tensors, in {time.perf_counter() - began:.1f} s"
    verdict = judge(step, plan) if plan.card else None
    cards = [] if verdict else _cards(step, plan, None)
    return dict(parameters=None, plan=plan, step=step, verdict=verdict, cards=cards, notes=[note])


def _evaluated(
    model, plan: TrainingPlan, measured: bool, evaluate: int | None, eval_batch: int | None, **options
) -> StepMemory | None:
    """Trainer's evaluation, if it is asked for. Raises ValueError for its other options without it."""
    if evaluate is None:
        wrong = [name for name, value in dict(options, eval_batch=eval_batch).items() if value]
        if wrong:
            raise ValueError(f"{wrong[0]} is {options.get(wrong[0], eval_batch)!r}; it needs evaluate, a number")
        return None
    batch = 8 if eval_batch is None else eval_batch
    if not measured:
        return predict_evaluation(model, plan, evaluate, batch, **options)
    from minigpt.memory.measured.evaluation import measure_evaluation  # here, because it imports torch

    return measure_evaluation(_configuration(model), plan, evaluate, batch, **options)


def _configuration(model):
    """What ``measure`` takes: of a name or path, the contents of its config.json."""
    return resolve(model) if isinstance(model, str) else model


def _text(report: dict) -> str:
    step, verdict = report["step"], report["verdict"]
    lines = [] if report["parameters"] is None else [f"{report['parameters']:,} parameters\n"]
    lines.append(f"{'bucket':<12} {'at its largest':>16} {'at the peak':>16}")
    for bucket in BUCKETS:
        largest, at_peak = (readable(getattr(ledger, bucket)) for ledger in (step.ledger, step.peak))
        lines.append(f"{bucket:<12} {largest:>16} {at_peak:>16}")
    total = step.peak.total
    lines += ["", f"peak: {gb(total)} = {gib(total)}, in {step.peak_at}", *report["notes"]]
    if (evaluation := report["evaluation"]) is not None:
        total = evaluation.peak.total
        lines += ["", f"evaluation: {gb(total)} = {gib(total)}, in {evaluation.peak_at}"]
        lines += [str(judge(evaluation, report["plan"])).split("\n")[0]] if report["plan"].card else []
    lines += ["", str(verdict) if verdict else f"fits on: {', '.join(report['cards']) or 'none of the known cards'}"]
    lines += (
        ["", "a rank sends, and receives as much, in each step:", *map(str, report["sent"])] if report["sent"] else []
    )
    lines += ["", "alive at the predicted peak:", table(report["tensors"])] if report["tensors"] else []
    return "\n".join(lines)


def _cards(step: StepMemory, plan: TrainingPlan, architecture: Architecture | None) -> list[str]:
    """The cards with room for a step that was asked about without one. What fits one fits a larger one.

    A step that was measured, or is not followed on a card, is judged by its tensors.
    """
    if architecture is None or plan.quantization == "int8":
        return [name for name in GPUS if judge(step, replace(plan, card=name)).fits]
    found = set[str]()
    for name in sorted(GPUS, key=lambda name: GPUS[name].room):
        if found or step.peak.total <= GPUS[name].room and not reserve(architecture, replace(plan, card=name)).failed:
            found.add(name)
    return [name for name in GPUS if name in found]


def _json(report: dict) -> str:
    import json

    step: StepMemory = report["step"]
    verdict: Verdict | None = report["verdict"]
    evaluation: StepMemory | None = report["evaluation"]
    return json.dumps(
        {
            "model": report["model"],
            "parameters": report["parameters"],
            "plan": asdict(report["plan"]),
            "ledger": step.ledger.as_dict(),
            "peak": {**step.peak.as_dict(), "total": step.peak.total, "at": step.peak_at},
            "evaluation": evaluation
            and {
                **evaluation.peak.as_dict(),
                "total": evaluation.peak.total,
                "at": evaluation.peak_at,
                "reserved": evaluation.card and evaluation.card.reserved,
            },
            "frozen": step.frozen,
            "sent": [{**asdict(one), "sent": one.sent} for one in report["sent"]],
            "notes": report["notes"],
            "verdict": verdict and verdict.as_dict(),
            "tensors": as_dicts(report["tensors"]),
        },
        indent=2,
    )


if __name__ == "__main__":
    sys.exit(main())
