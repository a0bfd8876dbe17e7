"""Calling an answer about weights in 4 bits with the book closed, and looking at what it returns.

    by_hand(function, *args)              its result; nothing that knows the truth answers meanwhile
    follows_device(function, *args)       its result must lie where its arguments lie
    vector(got, size, dtype, what)        what is returned, as plain numbers

Closed are the course's own quantizer, all of bitsandbytes, a step in another process, and every function of the checks
of labs 06 and 07 that knows a truth. Tables are handed to the answer where it needs them. An answer can also look into
the frames that call it, so whoever calls ``by_hand`` makes the truth afterwards.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable
from types import FunctionType

import bitsandbytes.functional as bnb
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from minigpt import nf4
from minigpt.checks.calling import call, closed, refuse
from minigpt.checks.comparing import show
from minigpt.memory.engine import layers
from minigpt.memory.measured import apart

COURSE = (nf4.derive_code, nf4.quantize, nf4.dequantize, nf4.quantize_statistics, nf4.dequantize_statistics,
          nf4.storage_bytes, layers.quantized_bytes, apart.run_apart)  # fmt: skip
CHECKS = ("quantizing", "packing", "nested", "four_bits", "kbit_counts")  # modules that make truths and slips
THEIR_TABLES = (bnb.get_4bit_type, bnb.create_normal_map)
HINTS = {  # part of what an answer's error says: what it means here
    "StatisticsError": "The quantiles of 0 and of 1 are infinite; stop at end",
    "is invalid for input of size": "Not every number of weights divides by the block; the last may be short",
    "must match the size of tensor": "A short last block, or an odd number of codes, leaves one of the two shorter",
    "shape of the mask": "A uint8 index is taken for a mask; index with codes.int()",
}


class _NoKernels(TorchDispatchMode):
    """Every kernel of bitsandbytes refuses, however it was reached."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "bitsandbytes":
            refuse("bitsandbytes")
        return func(*args, **(kwargs or {}))


def _closed_table(*args, **kwargs):  # stands in for a function's code, so it must find everything itself
    from minigpt.checks.calling import refuse

    refuse("bitsandbytes")


def _stand_ins() -> dict[FunctionType, Callable]:
    """{function that knows the truth: what refuses in its place}."""
    modules = [importlib.import_module(f"minigpt.checks.{name}") for name in CHECKS]
    own = [f for module in modules for f in vars(module).values() if getattr(f, "__module__", "") == module.__name__]
    return dict.fromkeys([*COURSE, *own], closed) | dict.fromkeys(THEIR_TABLES, _closed_table)


def by_hand(function: Callable, *args):
    """``call(..., by_hand=True)``, with all that is named above closed too; no NaN, no infinity."""
    with contextlib.ExitStack() as stack:
        for original, stand_in in _stand_ins().items():
            stack.callback(setattr, original, "__code__", original.__code__)
            original.__code__ = stand_in.__code__
        stack.enter_context(_NoKernels())
        try:
            once = call(function, *args, by_hand=True, twice=False)
        except AssertionError as error:
            for words, hint in HINTS.items():
                if words in str(error):
                    raise AssertionError(f"{error}. {hint}") from error
            raise
        parts = [part for part in (once if isinstance(once, (tuple, list)) else [once]) if isinstance(part, Tensor)]
        if not all(((part - part) == 0).all().item() for part in parts):
            raise AssertionError(
                f"{function.__name__} gives NaN or infinity: from 0 * (1 / 0), or from the quantile of 0 or of 1"
            )
        return call(function, *args, by_hand=True)


def follows_device(function: Callable, *args) -> None:
    """The result must lie where the arguments lie: tried on torch's ``meta`` device, whose tensors have no values."""
    name, moved = function.__name__, tree_map_only(Tensor, lambda tensor: tensor.to("meta"), args)
    try:
        got = call(function, *moved, twice=False, untouched=False)
    except AssertionError as error:
        said = str(error.__context__ or error).splitlines()[0]
        raise AssertionError(f"{name} fails with tensors on the meta device, which have no values: {said}. Make new "
                             "tensors on the first argument's device, and calculate with tensors, not with numpy, "
                             ".tolist() or .item()") from error  # fmt: skip
    if got.device.type != "meta":
        raise AssertionError(f"{name}: the arguments lie on the device meta and the result on {got.device}; make new "
                             "tensors on the first argument's device")  # fmt: skip


def random_weight(shape, dtype=torch.float32, seed: int = 0, size: float = 0.02) -> Tensor:
    """Normal numbers of deviation ``size``."""
    return (size * torch.randn(shape, generator=torch.Generator().manual_seed(seed))).to(dtype)


def plain(got, what: str) -> Tensor:
    """``got``, if it is a tensor and no more: a tensor's own class may say anything about itself."""
    if type(got) is not Tensor:
        shown = "it" if isinstance(got, Tensor) else show(got)
        raise AssertionError(f"{what}: {shown} is of type {type(got).__name__}; a torch.Tensor is asked for")
    return got


def vector(got, size: int, dtype: torch.dtype | None, what: str, counts: dict[int, str] | None = None) -> Tensor:
    """``got`` as a plain tensor (size,), int64 or float64, if its dtype is right; ``counts``: {another size: why}."""
    if tuple(plain(got, what).shape) != (size,):
        why = (counts or {}).get(got.numel(), "") if got.numel() != size else "make it flat"
        raise AssertionError(f"{what}: the shape is {tuple(got.shape)}, not ({size},){': ' + why if why else ''}")
    if dtype is not None and got.dtype != dtype:
        raise AssertionError(f"{what}: the dtype is {str(got.dtype)[6:]}; {str(dtype)[6:]} is asked for")
    return got.detach().to("cpu", torch.float64 if got.is_floating_point() else torch.int64)


def count(got: Tensor, right: Tensor, kind: str = "codes") -> str:
    return f"{(got != right).sum():,} of {len(right):,} {kind} differ"
