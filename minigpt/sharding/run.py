"""A short training with several ranks, in each of them; and the same in one process, to compare.

Rank r of W takes row r, r + W, ... of every batch. The mean over all tokens of a batch is the mean of the ranks' means,
since each has as many tokens; so every kind of sharding makes the update that one process makes. The order of a sum is
the only difference: for two ranks there is but one, and then all weights are equal to the last bit, if the one process,
too, takes the two parts of a batch one after the other.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from minigpt.model import GPT, GPTConfig
from minigpt.sharding.kinds import shard, whole_weights

LR = 1e-3


class Batches(Protocol):
    """By the number of a step: tokens and targets of all ranks, (B, T) each. ``random_windows`` is one."""

    def __getitem__(self, i: int, /) -> tuple[Tensor, Tensor]: ...


class Run(NamedTuple):
    losses: list[float]  # of each step, over the tokens of all ranks
    weights: list[Tensor]  # whole, after the last step
    held: dict[str, int]  # bytes that this rank has of weights, gradients and optimizer before the last step


def adamw(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=LR, foreach=False)


def run(config: GPTConfig, kind: str, batches: Batches, steps: int, device: str = "cpu", **options) -> Run:
    """Train for ``steps`` as one of the ranks of the default process group. ``options`` are ``shard``'s."""
    torch.manual_seed(0)
    shared, optimizer = shard(GPT(config).to(device), kind, adamw, **options)
    losses, kept = [], {}
    for i in range(steps):
        tokens, targets = (part[dist.get_rank() :: dist.get_world_size()].to(device) for part in batches[i])
        shared.zero_grad()
        loss = shared(tokens, targets)
        loss.backward()
        kept = held(shared, optimizer)
        optimizer.step()
        mean = loss.detach()
        dist.all_reduce(mean, op=dist.ReduceOp.AVG)
        losses.append(mean.item())
    return Run(losses, whole_weights(shared), kept)


def run_alone(config: GPTConfig, batches: Batches, steps: int, parts: int = 1) -> Run:
    """The same in one process, which takes each batch in so many ``parts``, as ranks would."""
    torch.manual_seed(0)
    model = GPT(config)
    optimizer = adamw(list(model.parameters()))
    losses, kept = [], {}
    for i in range(steps):
        model.zero_grad()
        loss = 0.0
        for part in range(parts):
            tokens, targets = (whole[part::parts] for whole in batches[i])
            mean = model(tokens, targets) / parts
            mean.backward()
            loss += mean.item()
        kept = held(model, optimizer)
        optimizer.step()
        losses.append(loss)
    return Run(losses, [p.detach() for p in model.parameters()], kept)


def held(module: nn.Module, optimizer) -> dict[str, int]:
    """Bytes of a rank's own part of weights, gradients and state, each piece of memory once."""
    parameters: list[Tensor] = list(module.parameters())
    found: dict[str, list[Tensor]] = {
        "weights": parameters,
        "gradients": [p.grad for p in parameters if p.grad is not None],
        "optimizer": [t for state in optimizer.state.values() for t in state.values() if isinstance(t, Tensor)],
    }
    return {name: _bytes(tensors) for name, tensors in found.items()}


def _bytes(tensors: list[Tensor]) -> int:
    local = [getattr(tensor, "_local_tensor", tensor).untyped_storage() for tensor in tensors]  # of a DTensor
    return sum({storage._cdata: storage.nbytes() for storage in local}.values())
