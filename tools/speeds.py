"""Predicted seconds against speeds that others measured and published: ``python -m tools.speeds`` prints every row.

``tests/readings/speeds.csv`` holds the readings with their sources. Each is predicted from its configuration alone,
with one MFU for all of them, or named with the reason why it is not. Of several cards each does its own passes, and
what the cards send each other is taken to hide behind them; the optimizer's work is shared.
"""

from __future__ import annotations

import csv
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

from minigpt.console import show
from minigpt.memory import TrainingPlan
from minigpt.memory.predicted.throughput import MFU, step_seconds
from tools.published import Compared

SPEEDS = Path(__file__).parent.parent / "tests" / "readings" / "speeds.csv"
FEW = 1024  # tokens in a pass; below it kernels are over before the next is launched


def _qwen(C: int, inner: int, layers: int) -> dict:
    """Qwen's first models: llama's shape, with heads of 128 and biases on q, k and v, which cost no FLOPs."""
    return dict(model_type="llama", vocab_size=151936, hidden_size=C, intermediate_size=inner, num_hidden_layers=layers,
                num_attention_heads=C // 128, max_position_embeddings=8192)  # fmt: skip


QWEN = {
    "qwen-1.8b": _qwen(2048, 5504, 24),
    "qwen-7b": _qwen(4096, 11008, 32),
    "qwen-14b": _qwen(5120, 13696, 40),
    "qwen-72b": _qwen(8192, 24576, 80),
}


@dataclass(frozen=True)
class Timed(Compared):
    """One published speed: seconds of one step on each card. ``tokens``: of a step, on one card."""

    tokens: int = 0


def speeds(path: str | Path = SPEEDS, mfu: float = MFU) -> list[Timed]:
    """Every row of the file, in its order. Raises ValueError for one that cannot be read."""
    with open(path, newline="", encoding="utf8") as file:
        rows = list(csv.DictReader(file))
    timed = []
    for row in rows:
        try:
            timed.append(_timed(row, mfu))
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"{path}: the row {row['id']} cannot be read: {error}") from None
    return timed


def _timed(row: dict[str, str], mfu: float) -> Timed:
    tokens = int(row["batch"]) * int(row["seq"] or 0) * int(row["passes"])
    group = row["id"].split("-")[0]
    what = f"{row['model']} {row['method']} {row['card']} {row['batch']}x{row['seq'] or '?'}x{row['passes']}"
    if reason := _reason(row):
        return Timed(row["id"], group, what, 0.0, None, reason, tokens)
    value = float(row["value"])
    steps = 1024 / int(row["cards"]) / int(row["batch"])
    published = {"tokens/s": tokens / value, "s/step": value, "s/1024 sequences": value / steps}[row["unit"]]
    products, decoding, update = _seconds(row["model"], row["card"], _plan(row))
    predicted = products * MFU / mfu + decoding + update / (1 if "DDP" in row["notes"] else int(row["cards"]))
    return Timed(row["id"], group, what, published, predicted, tokens=tokens)


def _reason(row: dict[str, str]) -> str:
    if not row["seq"]:
        return "tokens in a pass are not given, only how many there are at most or on average"
    if row["method"] == "qlora-gptq":
        return "4 bits of GPTQ, whose kernels are not followed"
    if "multinode" in row["notes"] or "Zero3" in row["notes"] or (row["method"] == "full" and row["cards"] == "2"):
        return "weights cross a link between cards, whose speed is not given"
    if row["notes"].startswith("FSDP;") or "CPU offload" in row["notes"]:
        return "weights cross a PCIe bus in every pass"
    return ""


def _plan(row: dict[str, str]) -> TrainingPlan:
    """The row's step. Sharded training keeps float32 weights, and casts; Qwen's full one has a master copy."""
    shape: dict[str, Any] = dict(
        batch=int(row["batch"]), seq_len=int(row["seq"]), accumulation=int(row["passes"]), card=row["card"]
    )
    adapters: dict[str, Any] = dict(rank=int(row["rank"]), targets=row["targets"]) if row["method"] != "full" else {}
    group, kind = row["id"].split("-")[0], row["checkpointing"]
    if group == "titan":
        return TrainingPlan(precision="bf16-autocast", optimizer_loop="fused", checkpointing=kind, **shape)
    if group == "tune":
        return TrainingPlan.like("torchtune", method=row["method"], **shape, **adapters)
    if group == "peftM":
        return TrainingPlan(precision="bf16", method=row["method"], **shape, **adapters)
    if row["method"] == "full":
        return TrainingPlan(precision="bf16-master", checkpointing=kind, **shape)
    saved = "embedding,head" if row["method"].endswith("-emb") else ""
    method = row["method"].removesuffix("-emb")
    return TrainingPlan(
        precision="bf16", autocast=True, method=method, modules_to_save=saved, checkpointing=kind, **shape, **adapters
    )


@cache
def _seconds(model: str, card: str, plan: TrainingPlan) -> tuple[float, float, float]:
    step = step_seconds(QWEN.get(model, model), plan, card)
    return step.products, step.decoding, step.update


def long(rows: list[Timed]) -> list[Timed]:
    """The predicted rows with at least FEW tokens in a pass, which MFU is about."""
    passes = {row.id: int(row.what.rpartition("x")[2]) for row in rows}
    return [row for row in rows if row.predicted is not None and row.tokens / passes[row.id] >= FEW]


def table(rows: list[Timed]) -> str:
    """Each row; then each source's median and worst, of long passes and of short ones; then what was not, and why."""
    lines = [f"{'published speed':<52} {'predicted':>10} {'published':>10} {'error':>7}"]
    enough = long(rows)
    for row in rows:
        if row.predicted is not None:
            mark = "" if row in enough else "  few tokens"
            times = f"{row.predicted:>8.3f} s {row.published:>8.3f} s {row.error:>+7.0%}"
            lines.append(f"{row.id + ' ' + row.what:<52.52} {times}{mark}")
    lines.append(f"\n{'group':<24} {'rows':>4} {'median':>7} {'of errors':>10} {'worst':>7}")
    groups = dict.fromkeys(row.group for row in rows if row.predicted is not None)
    chosen = {group: [row for row in enough if row.group == group] for group in groups}
    chosen |= {"all, long passes": enough, "all, few tokens": [r for r in rows if r.predicted and r not in enough]}
    for group, some in chosen.items():
        if some:
            errors = [row.error for row in some]
            sizes = f"{median(errors):>+7.0%} {median(map(abs, errors)):>10.0%} {max(errors, key=abs):>+7.0%}"
            lines.append(f"{group:<24} {len(some):>4} {sizes}")
    lines.append(f"\n{'not predicted':>4}  why")
    for reason in dict.fromkeys(row.reason for row in rows if row.predicted is None):
        groups_of = [row.group for row in rows if row.reason == reason]
        lines.append(f"{len(groups_of):>13}  {reason} ({', '.join(sorted(set(groups_of)))})")
    return "\n".join(lines)


def main() -> int:
    show(table(speeds()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
