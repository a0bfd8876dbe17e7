"""Data parallel training: every rank holds everything, and the gradients are averaged before each step.

An all-reduce leaves the mean on every rank, so all make the same update and stay equal: no weight is ever sent. Torch's
DistributedDataParallel does it while backward still runs, through buckets: copies of the gradients, 25 MiB at a time,
all of which it keeps.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import nn


class DataParallel(nn.Module):
    """``model``, which all ranks begin with the same weights, and its optimizer, in one: call it, and ``step()``."""

    def __init__(self, model: nn.Module, make_optimizer) -> None:
        super().__init__()
        self.module = model
        self.optimizer = make_optimizer([p for p in model.parameters() if p.requires_grad])

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)

    def step(self) -> None:
        for parameter in self.module.parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)
        self.optimizer.step()

    @property
    def state(self) -> Any:
        """The optimizer's tensors, by parameter."""
        return self.optimizer.state
