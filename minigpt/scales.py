"""Double quantization: the scales of a quantized tensor, its absmax values, in 8 bits.

    offset = mean(absmax)                                                       float32, one a tensor
    a2_s   = max |absmax - offset| over 256 of them                             float32, one for 256 blocks
    c      = the index of the value of dynamic_map() nearest to (absmax - offset) / a2_s     8 bits a block

Source: QLoRA, Dettmers et al. 2023; the bytes are those of bitsandbytes 0.50. Codes and map are those of 8-bit
optimizers (``minigpt.optim.blockwise``). The map is a constant, made where it is used, 1 KiB for a moment.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from minigpt.optim.blockwise import TINY, dequantize, dynamic_map, quantize, table

__all__ = ["TINY", "Statistics", "dequantize_statistics", "dynamic_map", "quantize_statistics", "table"]


class Statistics(NamedTuple):
    """absmax after double quantization."""

    codes: Tensor  # (blocks,) uint8: indices into dynamic_map()
    absmax: Tensor  # (ceil(blocks / 256),) float32
    offset: Tensor  # () float32


def quantize_statistics(absmax: Tensor) -> Statistics:
    """Double quantization of ``absmax`` (blocks,), float32. Nearest value of the map, a tie to the lower."""
    offset = absmax.mean()
    return Statistics(*quantize(absmax - offset, dynamic_map(device=absmax.device)), offset)


def dequantize_statistics(statistics: Statistics) -> Tensor:
    """absmax (blocks,) float32: map[codes] * a2 + offset."""
    codes, absmax, offset = statistics
    return dequantize(codes, absmax, dynamic_map(device=codes.device)) + offset
