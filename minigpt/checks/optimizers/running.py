"""Judging lab 04's runs: steps of a whole model that the judge asks for, and the weights that the notebook trained.

steps(adam8bit_step, begun)              three steps of a model are those of minigpt.optim.AdamW8bit
learned(models, (begun, margin, draw))   both of the notebook's models learned, and end within 1% of each other
keeps(adam8bit_step, begun)              what one step of each tensor leaves in the states, in bytes, by the meter
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from minigpt import train
from minigpt.checks import fetching, runs
from minigpt.checks.closing import by_hand, knows
from minigpt.checks.comparing import integer, same
from minigpt.checks.optimizers import eight_bit, storage
from minigpt.checks.optimizers.maps import MAPS
from minigpt.checks.verdict import Wrong
from minigpt.optim import AdamW8bit
from minigpt.optim.one_by_one import OneByOne

knows(__name__)
LR, DECAY, CLOSE = 3e-4, 0.1, 0.01  # a rate, a decay; the share by which the two losses may be apart
MAP_BYTES = 2048  # of the two maps, which all tensors share and no state has


class Asked(OneByOne):
    """8-bit AdamW, whose steps an answer takes."""

    def __init__(self, params, answer: Callable) -> None:
        super().__init__(params, lr=LR, betas=(0.9, 0.999), eps=1e-8, weight_decay=DECAY)
        self.answer = answer

    def _update(self, p: Tensor, grad: Tensor, state: dict, group: dict) -> None:
        t, options = state.get("t", 0) + 1, (group["lr"], group["betas"], group["eps"], group["weight_decay"])
        maps, kept = {name: values.to(p.device) for name, values in MAPS.items()}, state.get("kept", {})
        what = f"a parameter of {tuple(p.shape)}, step {t}"
        got = by_hand(self.answer, p.detach(), grad, kept, t, maps, *options, twice=False, guards=("no_optimizers",))
        weight, new = eight_bit.pair(got, what)
        if weight.shape != p.shape or not weight.isfinite().all():
            raise Wrong("differs", f"{what}: the weight is of {tuple(weight.shape)}, or holds NaN or infinity")
        state.update(t=t, kept=new)
        p.copy_(weight)


def steps(adam8bit_step: Callable, begun: runs.Beginning) -> None:
    mine, course = begun.model(), begun.model()
    batches, few = begun.batches(3, 2), train.TrainPlan(steps=3, lr=LR, seed=begun.seed)
    for model, optimizer in (
        (mine, Asked(mine.parameters(), adam8bit_step)),
        (course, AdamW8bit(course.parameters(), lr=LR, weight_decay=DECAY)),
    ):
        train.train(model, batches, few, optimizer=optimizer, progress=False)
    for (name, p), q in zip(mine.named_parameters(), course.parameters()):
        if not ((p - q).abs() > 1e-5).float().mean() < 0.01:
            raise Wrong("other-steps", f"{name}: three steps of yours are not three of minigpt.optim's")


def learned(models, case: tuple[runs.Beginning, float, int]) -> None:
    begun, margin, draw = case
    found = {name: fetching.fetched(model, begun.model(), name) for name, model in runs.trained(models, 2).items()}
    float32, eight = found.values()
    if all(map(same, float32.parameters(), eight.parameters())):
        raise Wrong("one-run", "the two models have the same weights: each is to be trained with its own optimizer")
    one, two = (runs.learned(model, begun, margin, draw, name) for name, model in found.items())
    if not abs(two / one - 1) < CLOSE:
        raise Wrong("apart", f"8 bits end at {two:.4f} nats per token, float32 at {one:.4f}: more than 1% apart")


def keeps(adam8bit_step: Callable, begun: runs.Beginning) -> None:
    model = begun.model()
    optimizer = Asked(model.parameters(), adam8bit_step)
    for p in model.parameters():
        p.grad = torch.full_like(p, 1e-3)
    optimizer.step()
    tensors = [x for state in optimizer.state.values() for x in state["kept"].values() if isinstance(x, Tensor)]
    storages = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in tensors}
    truth = storage.held(begun.config, "adamw8bit", "fp32")["optimizer"] - MAP_BYTES
    integer(sum(storages.values()), truth, "all states of the model after a step of yours, without the maps",
            wrong={"float32-state": ("that is float32 state for every tensor",
                                     sum(8 * p.numel() for p in model.parameters()))}, unit="bytes")  # fmt: skip
