"""What a model is, as plain values: for the check of a run, whose judge has data and losses of its own."""

from __future__ import annotations

from torch import Tensor, nn

from minigpt.checks.probes import probe


@probe
def weights(model: nn.Module) -> dict[str, Tensor]:
    """Copies of all parameters and buffers by name, as in ``state_dict``; tied ones share a storage."""
    copies: dict[int, Tensor] = {}
    return {name: copies.setdefault(id(value), value.detach().clone())
            for name, value in model.state_dict(keep_vars=True).items()}  # fmt: skip
