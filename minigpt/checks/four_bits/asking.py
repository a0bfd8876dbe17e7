"""Asking an answer about weights in 4 bits, and looking at what it returns.

    ask(function, *args)                  by_hand, where nothing of bitsandbytes answers; no NaN, no infinity
    follows_device(function, *args)       its result must lie where its arguments lie
    vector(got, size, dtype, what)        what is returned, as plain numbers

The tables are handed to the answer where it needs them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import bitsandbytes.functional as bnb
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from minigpt import nf4
from minigpt.checks.calling import call, explained, first_sentence, name_of
from minigpt.checks.closing import by_hand, knows
from minigpt.checks.comparing import show, values
from minigpt.checks.naming import Hints
from minigpt.checks.verdict import Wrong
from minigpt.memory.engine import layers
from minigpt.optim import blockwise

HINTS = {  # part of what an answer's error says: what it means here
    "p must be in the range": "The quantiles of 0 and of 1 are infinite; stop at end",
    "shape '[-1, 2]' is invalid": "The number of codes may be odd",
    "is invalid for input of size": "A tensor need not be a multiple of the block; the last may be short",
    "view size is not compatible": "A weight may be a transposed view; reshape copies where view cannot",
    "shape of the mask": "A uint8 index is taken for a mask; index with codes.int()",
}


FOUR_BITS = (  # what knows about weights in 4 bits, besides the checks
    nf4.derive_code, nf4.quantize, nf4.dequantize, nf4.quantize_statistics, nf4.dequantize_statistics,
    nf4.storage_bytes, blockwise.quantize, blockwise.dequantize, blockwise.dynamic_map, layers.quantized_bytes,
    bnb.get_4bit_type, bnb.create_normal_map,
)  # fmt: skip
knows(*FOUR_BITS, guard="NoKernels")


class Weight(NamedTuple):
    """A random weight, and how many of its numbers make a block."""

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    block: int = 64
    seed: int = 0
    turned: bool = False  # a transposed view

    @property
    def text(self) -> str:
        turned = " that is a transposed view" * self.turned
        return f"a {str(self.dtype)[6:]} weight of {tuple(self.shape)}{turned}, blocks of {self.block}"

    def tensor(self) -> Tensor:
        if self.turned:
            return random_weight(self.shape[::-1], self.dtype, self.seed).t()
        return random_weight(self.shape, self.dtype, self.seed)


def random_weight(shape, dtype=torch.float32, seed: int = 0, size: float = 0.02) -> Tensor:
    """Normal numbers of deviation ``size``."""
    return (size * torch.randn(shape, generator=torch.Generator().manual_seed(seed))).to(dtype)


def ask(function: Callable, *args, infinite: str = "does it divide by a 0?"):
    """``by_hand``, with a hint where its error has one; what it gives holds no NaN and no infinity."""
    try:
        given = by_hand(function, *args)
    except Wrong as verdict:
        raise explained(verdict, HINTS) from verdict.__cause__
    for part in given if isinstance(given, (tuple, list)) else [given]:
        if isinstance(part, Tensor) and not ((numbers := values(part, name_of(function))) - numbers == 0).all().item():
            raise Wrong("not-finite", f"{name_of(function)} gives numbers that are not finite: {infinite}")
    return given


def follows_device(function: Callable, *args) -> None:
    """The result must lie where the arguments lie: tried on torch's ``meta`` device, whose tensors have no values."""
    name, moved = name_of(function), tree_map_only(Tensor, lambda tensor: tensor.to("meta"), args)
    try:
        got = call(function, *moved, twice=False, untouched=False)
    except Wrong as verdict:
        said, code = first_sentence(str(verdict.__cause__ or verdict)), str(verdict).partition("\n")[2]
        raise Wrong(
            "needs-values",
            f"{name} must work on any device; on meta, whose tensors have no values, it fails: {said}. Make new "
            f"tensors on the first argument's device, without numpy, .tolist() and .item()\n{code}".rstrip(),
        ) from verdict
    if tensor(got, name).device.type != "meta":
        raise Wrong(
            "other-device",
            f"{name}: the arguments lie on the device meta and the result on {got.device}; make "
            "new tensors on the first argument's device",
        )


def tensor(got, what: str) -> Tensor:
    """``got``, if it is a tensor and no more: a tensor's own class may say anything about itself."""
    if type(got) is not Tensor:
        shown = "it" if isinstance(got, Tensor) else show(got)
        detach = ", as its .detach() is" if isinstance(got, nn.Parameter) else ""
        asked = f"a torch.Tensor is asked for{detach}"
        raise Wrong("wrong-type", f"{what}: {shown} is of type {type(got).__name__}; {asked}")
    return got


def vector(got, size: int, dtype: torch.dtype | None, what: str, counts: Hints | None = None) -> Tensor:
    """``got`` as a plain tensor (size,), int64 or float64, if its dtype is right; ``counts``: sizes of mistakes."""
    if tuple(tensor(got, what).shape) != (size,):
        id, why = ("not-flat", "make it flat") if got.numel() == size else ("wrong-shape", "")
        for mistake, (sentence, other) in reversed((counts or {}).items()):
            if other == got.numel() != size:
                id, why = mistake, sentence  # the first one wins
        raise Wrong(id, f"{what}: the shape is {tuple(got.shape)}, not ({size},){': ' + why if why else ''}")
    if dtype is not None and got.dtype != dtype:
        raise Wrong("wrong-dtype", f"{what}: the dtype is {str(got.dtype)[6:]}; {str(dtype)[6:]} is asked for")
    return got.detach().to("cpu", torch.float64 if got.is_floating_point() else torch.int64)


def differing(got: Tensor, right: Tensor, kind: str = "codes") -> str:
    return f"{(got != right).sum():,} of {len(right):,} {kind} differ"
