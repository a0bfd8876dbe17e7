"""Weights through all of a student's functions for 4 bits, one after another, as the layers of lab 08 use them.

through(functions, weights, code, block, tables)      each weight as stored, in bytes, and the one that comes back

``functions``: quantize, pack, unpack, dequantize, quantize_absmax, dequantize_absmax. ``tables``: for double
quantization, else None.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from minigpt.checks.probes import probe


@probe
def through(functions: tuple[Callable, ...], weights: list[Tensor], code: Tensor, block: int, tables: dict | None):
    quantize, pack, unpack, dequantize, quantize_absmax, dequantize_absmax = functions
    made = []
    for weight in weights:
        codes, absmax = quantize(weight, code, block)
        scales = quantize_absmax(absmax, tables) if tables else (absmax,)
        packed = pack(codes)
        nbytes = sum(tensor.clone().untyped_storage().nbytes() for tensor in (packed, *scales))
        if tables:
            absmax = dequantize_absmax(*scales, tables)
        again = dequantize(unpack(packed, weight.numel()), absmax, code, weight.shape, weight.dtype, block)
        made.append((nbytes, again))
    return made
