"""What torch writes in place unless a dispatch mode watches: tensors that only a metered run has.

Code in C++ that must work with any kind of tensor takes the out-of-place form of an operation while a dispatch mode is
active, and the in-place form otherwise. So a metered run has tensors that the run itself does not have, and the meter
books each of them in the place of the one that would have been written to. Two kinds are known:

    sums      ``add`` of a tensor that nobody else holds: autograd's engine adding up the gradients of one tensor, the
              mask of scaled dot-product attention's plain form, the bias of a linear layer of transposed inputs
    writes    the gradient of an operation that picks elements is written into new zeros: WRITES, by autograd's node

The list is what differs over the samples of torch.testing's ``op_db``, with a mode and without. Left out: operations
that a mode gives another algorithm (cumprod, prod, max and median of all elements), binary cross-entropy, linalg.
"""

from __future__ import annotations

import functools
import sys

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

aten = torch.ops.aten
ADD, DENSE = aten.add.Tensor, aten.is_non_overlapping_and_dense.default
WRITES = {  # the operation that a mode sees: the nodes of autograd whose gradient it makes
    aten.index_put.default: {"IndexBackward"},
    aten.scatter_add.default: {"GatherBackward", "CummaxBackward", "CumminBackward"},
    aten.index_add.default: {"IndexSelectBackward"},
    aten.scatter.src: {
        "MaxBackward", "MinBackward", "SortBackward", "TopkBackward", "KthvalueBackward", "MedianBackward",
        "NanmedianBackward", "ModeBackward",
    },
    aten.put.default: {"TakeBackward"},
    aten.masked_scatter.default: {"MaskedSelectBackward"},
    aten.logical_and.default: {"ClampBackward"},
}  # fmt: skip


def writes_in_place(func) -> bool:
    """Whether ``func``, one of WRITES, is called by a formula of backward that writes into its own new tensor."""
    if torch._C._current_graph_task_id() == -1 or torch.is_grad_enabled():  # not in backward, or recomputing a forward
        return False
    return type(torch._C._current_autograd_node()).__name__.rstrip("0123456789") in WRITES[func]


def holders(tensor: object) -> tuple[int, int, int] | None:
    """How many hold the tensor, its storage and its Python object; to be called as ``holders(args[0])`` by a mode."""
    if not isinstance(tensor, torch.Tensor):
        return None
    return (
        tensor._use_count(),  # type: ignore[attr-defined]  # torch's stub leaves it out
        torch._C._storage_Use_Count(tensor.untyped_storage()._cdata),
        sys.getrefcount(tensor),
    )


def sums_in_place(args: tuple, held: tuple | None, last: tuple) -> bool:
    """Whether ``add(*args)`` is a sum that C++ makes in place: into a dense tensor that it alone holds."""
    return held == last and isinstance(args[1], torch.Tensor) and DENSE(args[0])


@functools.cache
def last_reference() -> tuple[int, int, int]:
    """What ``holders`` says of a tensor that nothing holds but the C++ code that calls an operation with it.

    The mode's own arguments are holders too, and how many depends on the versions of torch and Python. So it is looked
    at: the engine adds up two gradients of one tensor, which only the engine has.
    """
    probe = _Probe()
    with _disable_current_modes(), torch.enable_grad(), probe:
        x = torch.ones(1, requires_grad=True) * 1
        (x * 2 + x * 3).backward()
    if len(probe.found) != 1:
        raise RuntimeError(f"autograd's engine made {len(probe.found)} sums where one was expected")
    return probe.found[0]


class _Probe(TorchDispatchMode):
    """Looks at the first argument of every sum in backward."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[int, int, int]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if func is ADD and torch._C._current_graph_task_id() != -1:
            held = holders(args[0])
            if held is not None:
                self.found.append(held)
        return out
