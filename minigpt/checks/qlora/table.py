"""Judging the table of lab 09: what is predicted and measured there, beside what ``predict`` says here.

    row(predicted, measured, name, setting)      one row, bucket by bucket

On a CPU a reading of the static buckets is right to the byte, and a peak to 2%. That a number was read, and not
predicted twice, cannot be seen here.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from minigpt.checks.closing import knows
from minigpt.checks.comparing import close
from minigpt.checks.probes import models as probed
from minigpt.checks.qlora.runs import BATCH, RANK
from minigpt.checks.verdict import Wrong
from minigpt.memory.families import Architecture
from minigpt.memory.plan import TrainingPlan
from minigpt.memory.predicted.step import predict
from minigpt.model import GPTConfig

knows(__name__)
ROWS = [f"{who}, {method}" for who in ("MiniGPT", "llama") for method in ("full", "LoRA", "QLoRA")]
ROWS += ["llama, QLoRA Trainer", "llama, QLoRA kept"]
UNSLOTH = "llama, QLoRA Unsloth"  # a row more, where it is installed


class Setting(NamedTuple):
    """What all rows are about. ``llama``: the contents of its config.json."""

    config: GPTConfig
    llama: dict
    seq_len: int
    on_gpu: bool


def row(predicted, measured, name: str, setting: Setting) -> None:
    for which, table in (("predicted", predicted), ("measured", measured)):
        if not isinstance(table, dict) or name not in table:
            raise Wrong("not-run", f"there is nothing {which} of {name} yet: run all cells of part 6, in order")
    model = setting.config if name.startswith("MiniGPT") else setting.llama
    plan = _plan(name.split(", ")[1], setting)
    right, mine = predict(model, plan), probed.memory(predicted[name])
    for bucket, nbytes in {**right.ledger.as_dict(), "peak": right.peak.total}.items():
        close(mine[bucket], nbytes, f"{name}, {bucket}, predicted", rtol=0, atol=0)
    read, slack = probed.memory(measured[name]), _slack(model, plan, setting.on_gpu)
    for bucket, allowed in slack.items():
        close(read[bucket], getattr(right.ledger, bucket), f"{name}, {bucket}, measured", rtol=0, atol=allowed)
    # Left out: Unsloth's peak, since its loss is another one, and a GPU's under Trainer's autocast, where peft leaves
    # casts out that a CPU makes; predict follows the CPU.
    if name != UNSLOTH and not (setting.on_gpu and name in ROWS[-2:]):
        close(read["peak"], right.peak.total, f"{name}, peak, measured", rtol=0.02, atol=sum(slack.values()))


def _plan(method: str, setting: Setting) -> TrainingPlan:
    """As the lab's cells have it."""
    size: dict[str, Any] = dict(
        batch=BATCH, seq_len=setting.seq_len, rank=RANK, optimizer_loop="foreach" if setting.on_gpu else "single"
    )
    if method == "full":
        return TrainingPlan(**size, precision="bf16-master")
    if method == "LoRA":
        return TrainingPlan(**size, precision="bf16", method="lora")
    qlora = TrainingPlan(**size, precision="bf16", method="qlora")
    if method == "QLoRA":
        return qlora
    if method == "QLoRA Unsloth":
        its_own: dict[str, Any] = dict(optimizer="adamw8bit") if setting.on_gpu else dict(optimizer_loop="fused")
        return replace(qlora, kbit_preparation=False, adapter_dtype="same", **its_own)
    checkpointing = "reentrant" if method == "QLoRA Trainer" else "none"
    return replace(qlora, precision="bf16-autocast", optimizer="adamw8bit", checkpointing=checkpointing)


def _slack(model, plan: TrainingPlan, on_gpu: bool) -> dict[str, int]:
    """Bytes by which a reading of a static bucket may differ: a GPU rounds every tensor up to 512."""
    tensors = Architecture.of(model).tensors()
    matrices = sum(tensor.kind == "linear" for tensor in tensors)
    frozen = len(tensors) + 2 + 5 * matrices * (plan.method == "qlora")  # rotary: 2; a 4-bit matrix: 6 storages
    trained = len(tensors) if plan.method == "full" else 2 * matrices
    counts = {"weights": frozen + trained, "gradients": trained, "optimizer": 4 * trained + 2}
    return {bucket: 512 * count * on_gpu for bucket, count in counts.items()}
