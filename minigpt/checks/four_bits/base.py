"""Judging what lab 08 makes of the base: its matrices through the student's functions, the losses, and the ledger.

    restored(*functions, double, setting)              the base's matrices, beside bitsandbytes'
    costs(added, before, name, setting)                a variant's losses as reported, beside those computed here
    counted(four_bit_bytes, *functions, double, setting)      the count, beside the bytes that the functions make
    row(predicted, measured, name, setting)            a step's memory as reported, beside what ``predict`` says here

The base, its text and the losses are this module's own, so a reported number has to be right. That it was measured, and
not worked out in another way, cannot be seen here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import bitsandbytes.functional as bnb
import torch
from torch import Tensor

from minigpt.base import load_base
from minigpt.checks.closing import by_hand, knows
from minigpt.checks.comparing import close, integer
from minigpt.checks.four_bits.nested import TABLES
from minigpt.checks.four_bits.quantizing import NF4, rounded
from minigpt.checks.four_bits.storage import stored
from minigpt.checks.probes import four_bits as probed
from minigpt.checks.probes import models
from minigpt.checks.verdict import Wrong
from minigpt.data import Batch, pretraining_text, windows_in_order
from minigpt.memory.plan import TrainingPlan
from minigpt.memory.predicted.step import predict
from minigpt.model import GPT, GPTConfig
from minigpt.train import bits_per_byte, evaluate

knows(__name__)
INT4 = torch.arange(-7, 8) / 7
BLOCK, BATCH, SEQ_LEN = 64, 8, 256
VARIANTS = [f"{code} {block}" for code in ("NF4", "int4") for block in (32, 64, 128, 256, 1024, 4096)]
VARIANTS += ["NF4 64 double"]
PLANS = ["LoRA on bf16", "LoRA on NF4", "LoRA on NF4, double"]
Functions = tuple[Callable, ...]  # quantize, pack, unpack, dequantize, quantize_absmax, dequantize_absmax


class Setting(NamedTuple):
    preset: str
    config: GPTConfig
    device: torch.device
    seed: int
    dry: bool


def restored(*functions_and_double: Any, setting: Setting) -> None:
    *functions, double = functions_and_double
    matrices, kind = _matrices(setting), "with double quantization" if double else "NF4"
    made = probed.through(tuple(functions), list(matrices.values()), NF4, BLOCK, TABLES if double else None)
    for (name, matrix), (_, mine) in zip(matrices.items(), made, strict=True):
        close(mine, _theirs(matrix, double), f"{name}, {kind}, and back", rtol=3e-2 * double, atol=0)


def costs(added, before, name: str, setting: Setting) -> None:
    if not isinstance(added, dict) or [*added] != VARIANTS or not isinstance(before, Tensor):
        raise Wrong("not-run", "there is no loss of each variant yet: run all cells of part 7, in order")
    model = _start(setting)
    windows = _windows(setting.preset, setting.dry)
    for matrix, weight in _matrices(setting).items():
        model.get_parameter(matrix).data = _by_table(weight, name).to(setting.device)
    for i in (0, len(windows) // 2):
        close(before[i], _loss(_start(setting), windows[i]), f"float32, batch {i} of the text", rtol=0, atol=1e-3)
        more = _loss(model, windows[i]) - before[i].item()
        close(added[name][i], more, f"{name}, added bits per byte in batch {i} of the text", rtol=0, atol=2e-3)


def counted(four_bit_bytes: Callable, *functions_and_double: Any, setting: Setting) -> None:
    *functions, double = functions_and_double
    matrices, kind = _matrices(setting), "double" if double else "plain"
    made = probed.through(tuple(functions), list(matrices.values()), NF4, BLOCK, TABLES if double else None)
    for (name, matrix), (mine, _) in zip(matrices.items(), made, strict=True):
        right = stored(matrix.numel(), BLOCK, bool(double))
        integer(mine, right, f"{name}, {kind}: the bytes that your functions make", unit="bytes")
        count = by_hand(four_bit_bytes, matrix.numel(), BLOCK, double)
        integer(count, right, f"{name}, {kind}: four_bit_bytes", unit="bytes")


def row(predicted, measured, name: str, setting: Setting) -> None:
    for which, table in (("predicted", predicted), ("measured", measured)):
        if not isinstance(table, dict) or name not in table:
            raise Wrong("not-run", f"there is nothing {which} of {name} yet: run all cells of part 8, in order")
    on_gpu = setting.device.type == "cuda"
    options: dict = dict(
        batch=2, seq_len=128, precision="bf16", rank=8, optimizer_loop="foreach" if on_gpu else "single"
    )
    if name == PLANS[0]:
        plan = TrainingPlan(method="lora", **options)
    else:
        double = name == PLANS[2]
        plan = TrainingPlan(method="qlora", double_quantization=double, kbit_preparation=False, **options)
    right, mine, read = predict(setting.config, plan), models.memory(predicted[name]), models.memory(measured[name])
    slack = 512 * (6 * len(_matrices(setting)) + 16) * on_gpu  # a GPU rounds every tensor up to 512 bytes
    truth = {"frozen": right.frozen, "trainable": right.trainable, "gradients": right.ledger.gradients,
             "optimizer": right.ledger.optimizer}  # fmt: skip
    for bucket, nbytes in truth.items():
        close(mine[bucket], nbytes, f"{name}, {bucket}, predicted", rtol=0, atol=0)
        close(read[bucket], nbytes, f"{name}, {bucket}, measured", rtol=0, atol=slack)


def _start(setting: Setting) -> GPT:
    if setting.preset == "nano":
        return load_base(setting.device)
    torch.manual_seed(setting.seed)
    return GPT(setting.config).to(setting.device)


def _matrices(setting: Setting) -> dict[str, Tensor]:
    return {name: p.detach().cpu() for name, p in _start(setting).named_parameters() if name.endswith("proj.weight")}


def _theirs(weight: Tensor, double: bool) -> Tensor:
    return bnb.dequantize_4bit(*bnb.quantize_4bit(weight, quant_type="nf4", compress_statistics=double))


def _by_table(weight: Tensor, name: str) -> Tensor:
    if name.startswith("NF4"):
        return _theirs(weight, "double" in name)
    codes, absmax = rounded(weight, INT4, BLOCK)
    return (INT4[codes.long()] * absmax.repeat_interleave(BLOCK)[: len(codes)]).view(weight.shape)


@cache
def _windows(preset: str, dry: bool) -> list[Batch]:
    text = windows_in_order(pretraining_text("validation"), BATCH, SEQ_LEN)
    few = 16 if preset == "nano" else 4
    return text[:: len(text) // few][:few] if dry else text


def _loss(model: GPT, batch: Batch) -> float:
    return bits_per_byte(evaluate(model, [batch]))
