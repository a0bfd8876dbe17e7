"""A model that lives elsewhere, brought here: the judge's own model with its weights, which are numbers and no code.

Left out: how the weights came about.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from minigpt.checks.probes import models
from minigpt.checks.verdict import Wrong


def fetched(model, into: nn.Module, what: str) -> nn.Module:
    """``into``, with the weights of ``model``. Raises Wrong where these are not of its kind."""
    return loaded(weights(model, what), into, what)


def weights(model, what: str) -> dict[str, Tensor]:
    """The weights of a model by name, as numbers."""
    said = models.weights(model)
    if not isinstance(said, Mapping) or not all(type(w) is Tensor for w in said.values()):
        raise Wrong("other-model", f"{what}: it has no weights")
    if not all(w.layout == torch.strided and not w.is_meta for w in said.values()):
        raise Wrong("other-model", f"{what}: its weights have no numbers")
    return dict(said)


def loaded(said: dict[str, Tensor], into: nn.Module, what: str) -> nn.Module:
    """``into``, with these weights."""
    if {name: w.shape for name, w in said.items()} != {name: w.shape for name, w in into.state_dict().items()}:
        raise Wrong(
            "other-model",
            f"{what}: its weights are not those of the model that this run begins from; run all cells of the run, in "
            f"order, and call nothing else {what}",
        )
    into.load_state_dict(said)
    return into
