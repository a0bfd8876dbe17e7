"""What a meter must know where several processes train together (torch.distributed), seen with torch 2.13.

DTensor        a tensor of which this rank has a part. A mode passes it on, and then sees the operations on the part
collectives    gloo works in a thread of its own, and lets go of its buffers some time after it is done: peaks would
               differ from run to run. Here each is waited for, and then for the thread (``meeting``)
scratch        gloo's reduce-scatter works in a copy of its input, which a caller meets when it waits; NCCL has none
storages       FSDP, and ``minigpt.sharding.zero3``, give a tensor's memory back and take it again, with no operation
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor

from minigpt.memory.measured.meeting import is_steady

SPLIT, REDUCE_SCATTER = torch.ops.aten.split.Tensor, "c10d::_reduce_scatter_base_"


def local(tensor: Tensor) -> Tensor:
    """The part that this rank has of a DTensor; any other tensor as it is."""
    return getattr(tensor, "_local_tensor", tensor)


def is_freed(tensor: Tensor) -> bool:
    """Whether the tensor's memory has been given back, to be there again when it is needed."""
    part = local(tensor)
    return part.device.type != "meta" and part.untyped_storage().nbytes() == 0 < part.numel()


class Ranks:
    """How one rank's meter treats operations that have to do with the others."""

    def __init__(self) -> None:
        self.small, self.scattered, self.steady = torch.zeros(1), False, is_steady()

    def passes_on(self, types) -> bool:
        """Whether the operation is DTensor's to take apart."""
        tensor = sys.modules.get("torch.distributed.tensor")  # not loaded: there is none
        return tensor is not None and any(issubclass(kind, tensor.DTensor) for kind in types)

    def settle(self, func, out) -> bool:
        """If ``func`` is a collective, wait for its end. True if ``out`` is gloo's scratch: not to be booked."""
        scratch, self.scattered = self.scattered and func is SPLIT, self.scattered and func is not SPLIT
        if func.namespace == "c10d":
            out[-1].wait()
            self.scattered = func.name() == REDUCE_SCATTER
            if self.steady:
                dist.all_reduce(self.small)
        return scratch


def first_hook(parameter: Tensor, hook: Callable[[Tensor], None]):
    """``hook`` is called when the parameter's gradient is there, before other hooks, which may take it away."""
    handle = parameter.register_post_accumulate_grad_hook(hook)
    hooks: Any = parameter._post_accumulate_grad_hooks
    for other in list(hooks)[:-1]:
        hooks[other] = hooks.pop(other)
    return handle


def resizes(seen: Callable[[torch.UntypedStorage, int], None]):
    """A context in which ``seen`` is called after a storage gets another size, with the bytes that it had before."""
    resize = torch.UntypedStorage.resize_

    def resize_(storage: torch.UntypedStorage, nbytes: int):
        before = storage.nbytes()
        result = resize(storage, nbytes)
        seen(storage, before)
        return result

    return mock.patch.object(torch.UntypedStorage, "resize_", resize_)
