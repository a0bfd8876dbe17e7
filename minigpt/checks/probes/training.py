"""A training step that a student wrote, on whole models and micro-batches, where it lives.

taken(step, model, calls, stale)      each call of ``step(model, optimizer, micro_batches)``, and what it did
saved(step, model, calls)             the most that is saved for backward at once, in bytes, in each call

The optimizer is plain SGD, with a learning rate of ``RATE``: with it a judge can follow the weights by itself.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from minigpt.checks.closing import by_hand
from minigpt.checks.probes import probe, tried
from minigpt.checks.verdict import Wrong

RATE = 0.1
Calls = list[list[tuple[Tensor, Tensor]]]  # micro-batches of (tokens, targets), call by call


@probe
def taken(step: Callable, model: nn.Module, calls: Calls, stale: Tensor | None = None) -> list:
    """What each call returned, what the optimizer saw, and what it left: one after the other, on one model.

    Before the last call every gradient is filled with ``stale``, if it is given. A Wrong stands in the place of a call
    that fails.
    """
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    told: list = []
    for i, batches in enumerate(calls, 1):
        if stale is not None and i == len(calls):
            for parameter in model.parameters():
                parameter.grad = stale.expand_as(parameter).clone()
        seen: list[dict[str, Tensor | None]] = []
        hook = optimizer.register_step_pre_hook(lambda *_, seen=seen: seen.append(_gradients(model)))
        loss = tried(by_hand, step, model, optimizer, batches, building=True, twice=False, untouched=False)
        hook.remove()
        told.append(loss if isinstance(loss, Wrong) else {
            "loss": loss, "seen": seen, "batches": batches, "training": model.training,
            "frozen": [name for name, parameter in model.named_parameters() if not parameter.requires_grad],
            "weights": {name: parameter.detach().clone() for name, parameter in model.named_parameters()},
        })  # fmt: skip
    return told


@probe
def saved(step: Callable, model: nn.Module, calls: Calls) -> list:
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    told: list = []
    for batches in calls:
        count = _Count(model)
        with torch.autograd.graph.saved_tensors_hooks(count.keep, lambda kept: kept.tensor):
            fault = tried(by_hand, step, model, optimizer, batches, building=True, twice=False, untouched=False)
        told.append(fault if isinstance(fault, Wrong) else count.most)
    return told


def _gradients(model: nn.Module) -> dict[str, Tensor | None]:
    return {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}


class _Count:
    """Bytes of the storages that autograd keeps, without those of ``model``'s parameters: now, and at most."""

    def __init__(self, model: nn.Module) -> None:
        self.now = self.most = 0
        self.holders: dict[int, int] = {}  # by the storage's address: how many keep it
        self.known = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}

    def keep(self, tensor: Tensor) -> _Kept:
        storage = tensor.untyped_storage()
        self.holders[storage.data_ptr()] = self.holders.get(storage.data_ptr(), 0) + 1
        if self.holders[storage.data_ptr()] == 1 and storage.data_ptr() not in self.known:
            self.now += storage.nbytes()
            self.most = max(self.most, self.now)
        return _Kept(tensor, self)

    def drop(self, storage: torch.UntypedStorage) -> None:
        self.holders[storage.data_ptr()] -= 1
        if not self.holders[storage.data_ptr()] and storage.data_ptr() not in self.known:
            self.now -= storage.nbytes()


class _Kept:
    """What autograd keeps in a tensor's place."""

    def __init__(self, tensor: Tensor, count: _Count) -> None:
        self.tensor, self._count = tensor, count

    def __del__(self) -> None:
        self._count.drop(self.tensor.untyped_storage())
