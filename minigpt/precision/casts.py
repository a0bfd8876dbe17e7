"""What autocast does, seen by running torch: the casts that it makes, which of them backward keeps, and where it stops.

    casts              every cast of one call, in order, told by what the dispatcher is handed (``_to_copy``); a cast is
                       kept if autograd's saved-tensor hooks see its storage
    result_dtypes      the dtype in which an operation answers under autocast, asked of torch one by one

Autocast caches the cast of a float32 leaf that needs a gradient, until its block ends: a weight used twice is cast
once. A frozen weight is cast again at each use. Source: ``cached_cast`` in torch's aten/src/ATen/autocast_mode.cpp.

CUDA's lists are asked without a GPU, on fake tensors, as only dtypes matter.

Left out: float64, devices other than a CPU and CUDA.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from minigpt.values import check_choice

DEVICES = ("cpu", "cuda")
CAST = torch.ops.aten._to_copy.default


@dataclass
class Cast:
    """A cast that autocast made. ``of`` is the parameter's name, "" for an activation; ``kept``: backward needs it."""

    of: str
    shape: tuple[int, ...]
    source: torch.dtype
    target: torch.dtype
    kept: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes of the copy."""
        return self.target.itemsize * torch.Size(self.shape).numel()


class _Watch(TorchDispatchMode):
    """Notes each cast, and holds its result, so that no two storages have one address."""

    def __init__(self, names: dict[int, str]) -> None:
        super().__init__()
        self.names = names
        self.found: list[Cast] = []
        self.copies: list[Tensor] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None) -> Any:
        result = function(*args, **(kwargs or {}))
        if function is CAST and result.dtype != args[0].dtype:
            name = self.names.get(args[0].untyped_storage().data_ptr(), "")
            self.found.append(Cast(name, tuple(result.shape), args[0].dtype, result.dtype))
            self.copies.append(result)
        return result


def casts(module: nn.Module, call: Callable[[], Any], dtype: torch.dtype = torch.bfloat16) -> list[Cast]:
    """The casts of ``call()`` under a CPU's autocast to ``dtype``, in order; ``module`` gives its parameters' names.

    A cast that ``call`` makes itself is listed, too.
    """
    names = {p.untyped_storage().data_ptr(): name for name, p in module.named_parameters()}
    kept: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    watch = _Watch(names)
    with torch.autocast("cpu", dtype), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), watch:
        result = call()
    storages = {tensor.untyped_storage().data_ptr() for tensor in kept}
    for cast, copy in zip(watch.found, watch.copies):
        cast.kept = copy.untyped_storage().data_ptr() in storages
    del result  # the graph lived until here, so that nothing kept was freed and its address taken again
    return watch.found


# ------------------------------------------------------------ where autocast stops

OPERATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "linear": lambda x: F.linear(x, x),
    "matmul": lambda x: x @ x,
    "attention": lambda x: F.scaled_dot_product_attention(heads := x.view(1, 1, 8, 8), heads, heads),
    "add": lambda x: x + x,
    "multiply": lambda x: x * x,
    "gelu": F.gelu,
    "silu": F.silu,
    "tanh": torch.tanh,
    "exp": torch.exp,
    "log": torch.log,
    "power": lambda x: x**2,
    "rsqrt": torch.rsqrt,
    "sum": torch.sum,
    "mean": torch.mean,
    "softmax": lambda x: F.softmax(x, -1),
    "log_softmax": lambda x: F.log_softmax(x, -1),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "rms_norm": lambda x: F.rms_norm(x, x.shape[-1:]),
    "cross_entropy": lambda x: F.cross_entropy(x, x.argmax(-1)),
    "mse_loss": lambda x: F.mse_loss(x, x),
}


def result_dtypes(
    device: str, given: torch.dtype = torch.bfloat16, half: torch.dtype = torch.bfloat16
) -> dict[str, torch.dtype]:
    """What each of OPERATIONS answers under the device's autocast to ``half``, given inputs in ``given``.

    Given 16 bits, a float32 answer means that autocast computes in float32; given float32, a 16-bit one that it casts
    down. Raises ValueError for another device than "cpu" and "cuda".
    """
    check_choice(DEVICES, device=device)
    with ExitStack() as stack:
        if device == "cuda":
            from torch._subclasses.fake_tensor import FakeTensorMode

            stack.enter_context(FakeTensorMode())
        x = torch.ones(8, 8, device=device, dtype=given)
        before = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
        try:  # torch.autocast("cuda") turns itself off where there is no GPU
            torch.set_autocast_enabled(device, True)
            torch.set_autocast_dtype(device, half)
            return {name: operation(x).dtype for name, operation in OPERATIONS.items()}
        finally:
            torch.set_autocast_enabled(device, before[0])
            torch.set_autocast_dtype(device, before[1])
