"""What a model is, and a step's memory, as plain values: for the check of a run, whose judge has truths of its own."""

from __future__ import annotations

from torch import Tensor, nn

from minigpt.checks.probes import probe
from minigpt.memory.buckets import StepMemory


@probe
def weights(model: nn.Module) -> dict[str, Tensor]:
    """Copies of all parameters and buffers by name, as in ``state_dict``; tied ones share a storage."""
    copies: dict[int, Tensor] = {}
    return {name: copies.setdefault(id(value), value.detach().clone())
            for name, value in model.state_dict(keep_vars=True).items()}  # fmt: skip


@probe
def memory(step: StepMemory) -> dict[str, int]:
    """Bytes: the five buckets each at its own largest, the peak, and the two parts of the weights."""
    return {**step.ledger.as_dict(), "peak": step.peak.total, "frozen": step.frozen, "trainable": step.trainable}
