"""Double quantization: the scales of a quantized tensor, its absmax values, in 8 bits.

    offset = mean(absmax)                                                       float32, one a tensor
    a2_s   = max |absmax - offset| over 256 of them                             float32, one for 256 blocks
    c      = the index of the value of dynamic_map() nearest to (absmax - offset) / a2_s     8 bits a block

Source: QLoRA, Dettmers et al. 2023; the bytes are those of bitsandbytes 0.50. The map is a constant, made where it is
used, 1 KiB for a moment.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

STATISTICS_BLOCK = 256  # absmax values that share one a2
TINY = 1e-38  # a block of zeros is divided by this; any smaller and 1 / absmax would be infinite


class Statistics(NamedTuple):
    """absmax after double quantization."""

    codes: Tensor  # (blocks,) uint8: indices into dynamic_map()
    absmax: Tensor  # (ceil(blocks / 256),) float32
    offset: Tensor  # () float32


def quantize_statistics(absmax: Tensor) -> Statistics:
    """Double quantization of ``absmax`` (blocks,), float32. Nearest value of the map, a tie to the lower."""
    offset, blocks = absmax.mean(), len(absmax)
    x = F.pad(absmax - offset, (0, -blocks % STATISTICS_BLOCK)).view(-1, STATISTICS_BLOCK)
    largest = x.abs().amax(1)  # (ceil(blocks / 256),)
    x = x * (1 / largest.clamp(min=TINY))[:, None]
    code = dynamic_map(device=x.device)
    codes = torch.bucketize(x, (code[:-1] + code[1:]) / 2, out_int32=True).view(-1)[:blocks]
    return Statistics(codes.to(torch.uint8), largest, offset)


def dequantize_statistics(statistics: Statistics) -> Tensor:
    """absmax (blocks,) float32: map[codes] * a2 + offset."""
    x = dynamic_map(device=statistics.codes.device)[statistics.codes.int()]
    return x * statistics.absmax.repeat_interleave(STATISTICS_BLOCK)[: len(x)] + statistics.offset


def dynamic_map(signed: bool = True, device: str | torch.device = "cpu") -> Tensor:
    """The 8-bit dynamic map: (256,) float32, ascending. Seven decades, each with twice the values of the one below.

    Decade k, k = 0..6, holds the centres of 2^k equal parts (2^(k+1) if unsigned) of [0.1, 1], times 10^(k - 6), and
    their negatives if ``signed``; then 0 and 1. From Dettmers 2015, as bitsandbytes makes it, in float32 throughout.
    """
    return table(_dynamic_values(signed), device)


@cache
def _dynamic_values(signed: bool) -> list[float]:
    values = [0.0, 1.0]
    with _disable_current_modes():  # fake tensors have no values, and a meter would count these
        for k in range(7):
            edges = torch.linspace(0.1, 1, (1 if signed else 2) * 2**k + 1, dtype=torch.float32, device="cpu")
            centres = (edges[:-1] + edges[1:]) / 2 * 10 ** (k - 6)
            values += centres.tolist() + ((-centres).tolist() if signed else [])
    return sorted(values)


def table(values: Sequence[float], device: str | torch.device) -> Tensor:
    """A float32 tensor; by way of the CPU, or it would not be a fake one on a fake device."""
    return torch.tensor(values, dtype=torch.float32, device="cpu").to(device)
