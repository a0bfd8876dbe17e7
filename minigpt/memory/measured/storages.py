"""What the meter keeps of a storage, and of each time that autograd saves it."""

from __future__ import annotations

import weakref
from typing import Any

import torch

WEIGHTS, GRADIENTS, OPTIMIZER, ACTIVATIONS, TEMPORARY = range(5)


class Storage:
    """A live storage: its size, its standing bucket (None until it has one), how often it is saved."""

    __slots__ = ("ref", "nbytes", "bucket", "saved", "frozen")

    def __init__(self, nbytes: int) -> None:
        self.ref: weakref.ref[torch.UntypedStorage] | None = None
        self.bucket: int | None = None
        self.nbytes, self.saved, self.frozen = nbytes, 0, False


class Saved:
    """What autograd keeps instead of the tensor it saves; its death is the end of the saving."""

    __slots__ = ("tensor", "storage", "meter")

    def __init__(self, tensor: torch.Tensor, storage: Storage, meter: Any) -> None:
        self.tensor, self.storage, self.meter = tensor, storage, meter

    def __del__(self) -> None:
        storage, meter = self.storage, self.meter
        storage.saved -= 1
        if storage.saved == 0 and storage.nbytes:
            meter._events.append((meter.phase, storage, 0, TEMPORARY))
