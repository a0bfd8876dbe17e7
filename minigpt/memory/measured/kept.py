"""What a selective checkpoint keeps beside autograd, seen by standing in for the record that torch makes of it.

``torch.utils.checkpoint`` (2.13) wraps what the first run keeps in a ``_VersionWrapper``, which dies when the second
run takes it, or with the block. So that wrapper's life is the tensor's time as an activation.
"""

from __future__ import annotations

from collections.abc import Callable
from unittest import mock

import torch
from torch.utils import checkpoint


def kept_by_checkpoints(pack: Callable[[torch.Tensor], object]):
    """A context in which ``pack`` is called with each tensor that is kept; what it returns lives as long as that is."""

    class Kept(checkpoint._VersionWrapper):
        def __init__(self, value) -> None:
            super().__init__(value)
            self.saved = pack(value) if isinstance(value, torch.Tensor) else None

    return mock.patch.object(checkpoint, "_VersionWrapper", Kept)
