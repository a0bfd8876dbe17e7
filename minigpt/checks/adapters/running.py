"""Judging runs with a student's adapters: by what this module computes itself, never by what a run says of itself.

    learned(models, start, batches, margin, alpha, LoRALinear)   what was trained does better than ``start``
    as_peft(inject, (config, rank, alpha))                       ten steps from a fresh MiniGPT, beside peft's
    kept(inject, (config, rank))                                 the bytes that a run keeps, beside ``predict``'s

A trained model is taken for its weights alone, and put together here: W + s B A in a plain MiniGPT. The scale s is that
of the student's own layer, which part 1 judges.

Left out: on which functions a model was trained. One that has seen the held-out ones does well on them, too.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from minigpt.checks.adapters.injecting import adapter, linear_layers, merge
from minigpt.checks.adapters.layer import Case, shaped, values
from minigpt.checks.closing import knows
from minigpt.checks.comparing import buckets, close, same, show
from minigpt.checks.probes import adapting, layers, models, unless_wrong
from minigpt.checks.training import fell
from minigpt.checks.verdict import Wrong
from minigpt.data import Batch
from minigpt.memory.plan import TrainingPlan
from minigpt.memory.predicted.step import predict
from minigpt.model import GPT, GPTConfig

knows(__name__)
STEPS, RATE = 10, 3e-3


def learned(trained, start: GPT, batches: list[Batch], margin: float, alpha: float, cls: Callable) -> None:
    """``trained``: {"full": model, and others with adapters: model}."""
    if not isinstance(trained, Mapping) or "full" not in trained or len(trained) < 2:
        raise Wrong("not-run", f"models is {show(trained)}: run all cells of the training, in order")
    for name, model in trained.items():
        fell(_plain(name, models.weights(model), start, alpha, cls), start, batches, margin)


def _plain(name: str, weights, start: GPT, alpha: float, cls: Callable) -> GPT:
    """A MiniGPT with these weights, adapters merged; what a run with adapters has beside them must be the base's."""
    model, adapters = copy.deepcopy(start), {}
    for key in linear_layers(start):
        pair = tuple(weights.get(f"{key}.{part}") for part in ("lora_A", "lora_B"))
        if all(isinstance(part, Tensor) for part in pair):
            adapters[key] = tuple(part.to(start.norm.weight) for part in pair)
    if bool(adapters) == (name == "full"):
        raise Wrong("other-method", f"{name}: it has {len(adapters)} adapters: was the cell changed that trains it?")
    for key, own in model.state_dict().items():
        stem, _, last = key.rpartition(".")
        value = weights.get(f"{stem}.base.{last}" if stem in adapters else key)
        if not isinstance(value, Tensor) or value.shape != own.shape:
            raise Wrong("other-model", f"{name}: it has no {key} of {tuple(own.shape)}; was another model trained?")
        if adapters and not same(value.cpu(), own.cpu()):
            raise Wrong("base-trained", f"{name}: {key} is not what it was; only adapters are trained")
        own.copy_(value)
    try:
        return merge(model, adapters, _scale(cls, len(next(iter(adapters.values()))[0]), alpha) if adapters else 0)
    except RuntimeError:
        raise Wrong("other-adapters", f"{name}: an A or a B does not fit its layer; see part 1") from None


def _scale(cls: Callable, rank: int, alpha: float) -> float:
    """What the student's layer multiplies B A x with."""
    case = Case(24, 40, rank, alpha)
    base, x = nn.Linear(24, 40, bias=False), torch.randn(7, 24)
    A, B = values((rank, 24)), values((40, rank))
    said = layers.run(cls, copy.deepcopy(base), rank, alpha, x, A, B, torch.ones(7, 40))
    shaped(said, case)
    with torch.no_grad():
        update, found = x @ A.T @ B.T, unless_wrong(said["y"]) - base(x)
        return ((found * update).sum() / update.square().sum()).item()


def as_peft(inject: Callable, case: tuple[GPTConfig, int, float]) -> None:
    """From the same base and the same A, on the same batches."""
    from peft import LoraConfig, get_peft_model

    config, rank, alpha = case
    torch.manual_seed(0)
    model = GPT(config)
    linears = linear_layers(model)
    draws = {name: adapter(layer, rank, seed=i)[0] for i, (name, layer) in enumerate(linears.items())}
    sequences = torch.randint(config.vocab_size, (STEPS, 4, config.context + 1))
    batches = [(rows[:, :-1], rows[:, 1:]) for rows in sequences]
    mine = adapting.trained(inject, copy.deepcopy(model), rank, alpha, draws, batches, RATE)
    theirs: Any = get_peft_model(model, LoraConfig(r=rank, lora_alpha=int(alpha), target_modules=list(linears)))
    for name, A in draws.items():
        theirs.base_model.model.get_submodule(name).lora_A["default"].weight.data.copy_(A)
    optimizer = torch.optim.AdamW([p for p in theirs.parameters() if p.requires_grad], lr=RATE)
    losses = []
    for batch in batches:
        loss = theirs(*batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    if not isinstance(mine, list) or len(mine) != STEPS:
        raise Wrong("no-losses", f"{STEPS} steps give {show(mine)}")
    close(torch.tensor(mine), torch.tensor(losses), f"the losses of {STEPS} steps beside peft's", rtol=0, atol=1e-5)


def kept(inject: Callable, case: tuple[GPTConfig, int]) -> None:
    """The weights, gradients and AdamW's state of a float32 MiniGPT with adapters of this rank on all targets."""
    config, rank = case
    sizes = adapting.sizes(inject, GPT(config), rank, 16)
    trained = [(n, size) for n, size, grad in sizes.values() if grad]
    mine = {
        "frozen": sum(n * size for n, size, grad in sizes.values() if not grad),
        "trainable": sum(n * size for n, size in trained),
        "gradients": sum(n * size for n, size in trained),
        "optimizer": sum(2 * n * size + 4 for n, size in trained),
    }
    step = predict(config, TrainingPlan(method="lora", rank=rank, batch=1, seq_len=config.context))
    truth = {"frozen": step.frozen, "trainable": step.trainable} | {
        bucket: getattr(step.ledger, bucket) for bucket in ("gradients", "optimizer")
    }
    buckets(mine, truth, f"rank {rank}, of the parameters that inject leaves")
