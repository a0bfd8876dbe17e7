"""Judging the three runs on MiniGPT by the weights that they end with: the losses are computed here, on text of ours.

    learned(models, method, setting)      ``models[method]``, trained from ``setting``'s start

Of a model only the weights are asked. What is frozen must be what this module makes of the base itself, and the rest
goes into a model of this module's own. So a reported loss earns nothing, and neither does a model that is no QLoRA.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from minigpt.base import load_base
from minigpt.checks.closing import knows
from minigpt.checks.comparing import same
from minigpt.checks.probes import models as probed
from minigpt.checks.training import fell
from minigpt.checks.verdict import Wrong
from minigpt.data import Batch, docstring_pairs, pair_batches
from minigpt.lora import inject
from minigpt.model import GPT, GPTConfig
from minigpt.nf4 import quantize_model

knows(__name__)
RANK, ALPHA = 8, 16
PAIRS, BATCH, SEQ_LEN = 48, 8, 96
MARGIN = 0.05  # nats per target token, the loss's own unit: 1 nat is 1 / ln 2 = 1.44 bits


class Setting(NamedTuple):
    """Where all runs start."""

    preset: str
    config: GPTConfig
    device: torch.device
    seed: int


def learned(models, method: str, setting: Setting) -> None:
    """Its loss on functions that no run ever saw is ``MARGIN`` under the start's."""
    if not isinstance(models, dict) or method not in models:
        raise Wrong("not-run", f"there is no run of {method} yet: run all cells of part 3, in order")
    found, own = probed.weights(models[method]), _made(method, setting)
    for name, right in own.state_dict(keep_vars=True).items():
        weight = found.get(name)
        if not isinstance(weight, Tensor) or weight.shape != right.shape:
            part = f"{method}: the trained model has no {name} of {tuple(right.shape)}"
            if name.endswith("packed"):
                raise Wrong("not-four-bits", f"{part}: it is not in 4 bits")
            raise Wrong("other-parts", f"{part}; is it what the cells of part 3 make?")
        if weight.dtype != right.dtype:
            raise Wrong("other-dtype", f"{method}: {name} of the trained model is {weight.dtype}, not {right.dtype}")
        if right.requires_grad:
            right.data.copy_(weight)
        elif not same(weight, right):
            raise Wrong("base-changed", f"{method}: training has changed {name}, which is frozen")
    fell(own, _start(setting), _text(), MARGIN)


def _start(setting: Setting) -> GPT:
    if setting.preset == "nano":
        return load_base(setting.device, torch.bfloat16)
    torch.manual_seed(setting.seed)
    return GPT(setting.config).to(setting.device, torch.bfloat16)


def _made(method: str, setting: Setting) -> GPT:
    """The model before it is trained; its adapters are not those of the run."""
    model = _start(setting)
    if method == "QLoRA":
        quantize_model(model, double_quantization=True, compute_dtype=torch.bfloat16)
        model.float()  # what is not in 4 bits
    if method != "full":
        inject(model, RANK, ALPHA, targets="all-linear")
    return model


@cache
def _text() -> list[Batch]:
    return list(pair_batches(docstring_pairs("validation", SEQ_LEN - 1)[:PAIRS], BATCH, SEQ_LEN, seed=None))
