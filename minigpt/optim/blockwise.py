"""Numbers in 8 bits: a map of 256 values, and blocks of 256 numbers that share a scale.

    absmax_b = max |x| over block b                                             float32, one per block
    code     = the index of the value of the map nearest to x * (1 / absmax_b)     8 bits per number
    x'       = map[code] * absmax_b                                             float32

That is 1 + 4/256 = 1.015625 bytes per number. One large number costs precision in its own block only.

The dynamic map has seven decades, each with twice as many values as the one below it, so that a small number keeps one
or two digits where a linear map makes it zero. m has a sign, v has none, and its map has twice the values:

    decade k = 0..6:   the centres of 2^k equal parts (2^(k+1) without a sign) of [0.1, 1], times 10^(k - 6)

                       values                              smallest above 0      relative step near 1
    dynamic, signed    127 below zero, zero, 128 above     5.5e-7                1.4%
    dynamic            zero, 255 above                     3.25e-7               0.7%
    linear, signed     127 below zero, zero (twice, but    0.0079                0.8%
                       for rounding), 127 above
    linear             zero, 255 above                     0.0039                0.4%

Sources: the map is Dettmers 2015, arXiv 1511.04561; blocks are Dettmers et al. 2021, arXiv 2110.02861. The maps are
those of bitsandbytes 0.50 to the bit, the codes those of its CUDA kernel: nearest value, a tie to the lower. Its CPU
kernel looks codes up in a table of 65,536 entries: that is one code off near the middle between two values, and several
where values lie closer than the table's entries, near zero; what is decoded differs by 3e-5 of absmax at most.

Left out: stochastic rounding, fewer bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from minigpt.values import check_counts

BLOCK = 256  # numbers that share an absmax
TINY = 1e-38  # a block of zeros is divided by this; any smaller and 1 / absmax would be infinite


class Blocks(NamedTuple):
    """A tensor of n numbers in 8 bits."""

    codes: Tensor  # uint8, of the tensor's shape
    absmax: Tensor  # (ceil(n / block),) float32


def quantize(x: Tensor, values: Tensor, block: int = BLOCK, name: str = "x") -> Blocks:
    """``x``, of any shape and floating dtype, in codes of ``values`` (256,), a map. A last block may be short.

    A block of zeros decodes to zeros. Raises ValueError, with ``name``, for NaN or infinity, which would spoil the
    block; for another dtype; and for a ``block`` under 1.
    """
    check_counts(block=block)
    if not x.is_floating_point():
        raise ValueError(f"{name} is {x.dtype}; it must be of a floating-point dtype")
    n = x.numel()
    flat = F.pad(x.detach().float().reshape(-1), (0, -n % block)).view(-1, block)
    absmax = flat.abs().amax(1)  # (blocks,)
    # A block's NaN or infinity is its absmax. Fake and meta tensors have no values to look at.
    if type(absmax) is Tensor and not absmax.is_meta and not absmax.isfinite().all():
        raise ValueError(f"{name} holds NaN or infinity; every number must be finite")
    scaled = flat * (1 / absmax.clamp(min=TINY))[:, None]  # as bitsandbytes: not x / absmax, which rounds otherwise
    scaled, midpoints = scaled.view(-1)[:n], (values[:-1] + values[1:]) / 2
    codes = torch.zeros(n, dtype=torch.int32, device=x.device)
    for bit in (128, 64, 32, 16, 8, 4, 2, 1):  # how many midpoints are below, by halving: faster than torch.bucketize
        codes.add_(scaled > midpoints[bit - 1 :].index_select(0, codes), alpha=bit)
    return Blocks(codes.view(x.shape).to(torch.uint8), absmax)


def dequantize(codes: Tensor, absmax: Tensor, values: Tensor, block: int = BLOCK) -> Tensor:
    """The numbers behind ``codes``, float32 of their shape: values[code] * absmax."""
    x = values[codes.int()].view(-1)
    return (x * absmax.repeat_interleave(block)[: len(x)]).view(codes.shape)


# ---------------------------------------------------------------- maps


def dynamic_map(signed: bool = True, device: str | torch.device = "cpu") -> Tensor:
    """The 8-bit dynamic map: (256,) float32, ascending, as bitsandbytes makes it: in float32 throughout."""
    return table(_dynamic_values(signed), device)


def linear_map(signed: bool = True, device: str | torch.device = "cpu") -> Tensor:
    """256 values at equal distances, for comparison: (256,) float32, ascending, as bitsandbytes makes it."""
    return table(_linear_values(signed), device)


@cache
def _dynamic_values(signed: bool) -> list[float]:
    values = [0.0, 1.0]
    with _disable_current_modes():  # fake tensors have no values, and a meter would count these
        for k in range(7):
            edges = torch.linspace(0.1, 1, (1 if signed else 2) * 2**k + 1, dtype=torch.float32, device="cpu")
            centres = (edges[:-1] + edges[1:]) / 2 * 10 ** (k - 6)
            values += centres.tolist() + ((-centres).tolist() if signed else [])
    return sorted(values)


@cache
def _linear_values(signed: bool) -> list[float]:
    with _disable_current_modes():
        values = torch.linspace(-1 if signed else 0, 1, 255 if signed else 256, device="cpu").tolist()
    return sorted([*values, 0.0]) if signed else values


def table(values: Sequence[float], device: str | torch.device) -> Tensor:
    """A float32 tensor; by way of the CPU, or it would not be a fake one on a fake device."""
    return torch.tensor(values, dtype=torch.float32, device="cpu").to(device)
