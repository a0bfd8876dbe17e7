"""Judging how a student packs 4-bit codes and makes weights of them again; the truth is bitsandbytes on a CPU.

    packs(pack, n)                    two codes per byte
    unpacks(unpack, n)                and back
    restores(dequantize, weight)      code * absmax in float32, then the weight's dtype

A round trip would prove nothing, since the wrong order of the halves inverts itself: ``pack`` is held to the bytes of
bitsandbytes, and ``unpack`` is given them.

Left out: the half byte that an odd number of codes leaves over; it is free.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import bitsandbytes.functional as bnb
import torch
import torch.nn.functional as F
from torch import Tensor

from minigpt.checks.closing import asked_first, knows
from minigpt.checks.comparing import close
from minigpt.checks.four_bits.asking import Weight, ask, differing, follows_device, random_weight, tensor, vector
from minigpt.checks.four_bits.quantizing import NF4, unpacked
from minigpt.checks.naming import Hints, given
from minigpt.checks.verdict import Wrong

knows(__name__)


def packs(pack: Callable, n: int) -> None:
    """``pack(codes)`` -> bytes, of n codes."""
    what, size = f"pack, {n} codes", (n + 1) // 2
    got = vector(ask(pack, unpacked(_bytes(n), n)), size, torch.uint8, what, {
        "not-packed": ("one code per byte: nothing is packed", n),
        "last-lost": ("the last of an odd number of codes is lost", n // 2),
    })  # fmt: skip
    right = _bytes(n)
    free = torch.full((size,), 255)
    free[-1] = 240 if n % 2 else 255  # the low half of the last byte, where n is odd, is free
    if not ((got ^ right) & free).any():
        return
    for id, (sentence, wrong) in _pack_slips(F.pad(unpacked(right, n), (0, n % 2))).items():
        if not ((got ^ wrong) & free).any():
            raise Wrong(id, f"{what}: {sentence}")
    raise Wrong("differs", f"{what}: {differing(got & free, right & free, 'bytes')}")


def _bytes(n: int) -> Tensor:
    """(ceil(n / 2),) uint8: bitsandbytes' bytes of a random weight."""
    return bnb.quantize_4bit(random_weight(n, seed=n), quant_type="nf4")[0].view(-1)


def _pack_slips(codes: Tensor) -> Hints:
    """The bytes that mistakes make of an even number of codes."""
    (even, odd), (first, second) = codes.view(-1, 2).unbind(1), codes.view(2, -1)
    return {
        "low-half-first": ("the even code is in the low half of its byte; bitsandbytes has it in the high half",
                           odd << 4 | even),
        "first-half-high": ("the first half of the codes is in the high halves; neighbours share a byte",
                            first << 4 | second),
        "second-half-high": ("the second half of the codes is in the high halves; neighbours share a byte",
                             second << 4 | first),
        "not-shifted": ("the even code is not shifted by four bits", even | odd),
        "plus-binds-first": ("+ binds more strongly than <<: even << 4 + odd is even << (4 + odd); write |, or "
                             "parentheses", even << (4 + odd)),
        "no-odd-codes": ("the odd codes are missing", even << 4),
        "no-even-codes": ("the even codes are missing", odd),
    }  # fmt: skip


def unpacks(unpack: Callable, n: int) -> None:
    """``unpack(packed, n)`` -> the n codes."""
    what, size = f"unpack, {n} codes", (n + 1) // 2
    asked = asked_first([partial(ask, unpack, _bytes(n), n), partial(follows_device, unpack, _bytes(n), n)])
    got = vector(next(asked), n, torch.uint8, what, {
        "half-byte-too-many": ("the half byte that is left over is in it", 2 * size),
        "not-unpacked": ("one code is taken from each byte; it holds two", size),
    })  # fmt: skip
    packed = _bytes(n)
    codes = unpacked(packed, n)
    if (got != codes).any():
        for id, (sentence, wrong) in _unpack_slips(packed).items():
            if (got == wrong[:n]).all():
                raise Wrong(id, f"{what}: {sentence}")
        raise Wrong("differs", f"{what}: {differing(got, codes)}")
    next(asked)


def _unpack_slips(packed: Tensor) -> Hints:
    high, low = packed >> 4, packed & 15
    return {
        "low-half-first": ("the low half of a byte comes first; the even code is in the high half",
                           torch.stack([low, high], 1).view(-1)),
        "high-halves-first": ("all high halves come first, then all low ones; they alternate", torch.cat([high, low])),
        "low-halves-first": ("all low halves come first, then all high ones; they alternate", torch.cat([low, high])),
        "not-masked": ("the high half is still in the odd codes; mask it: byte & 15",
                       torch.stack([high, packed], 1).view(-1)),
        "not-shifted": ("the high half is not shifted down by four bits", torch.stack([packed & 240, low], 1).view(-1)),
    }  # fmt: skip


def restores(dequantize: Callable, weight: Weight) -> None:
    """``dequantize(codes, absmax, code, shape, dtype, block)`` -> the weight; every value must be bitsandbytes'."""
    what = f"a weight of {tuple(weight.shape)}, blocks of {weight.block}, as {str(weight.dtype)[6:]}"
    shape = torch.Size(weight.shape)
    inputs = (*_stored(weight), NF4, shape, weight.dtype, weight.block)
    other = NF4**3
    by_other = *inputs[:2], other, *inputs[3:]
    asked = asked_first(
        [
            partial(ask, dequantize, *inputs),
            partial(ask, dequantize, *by_other),
            partial(follows_device, dequantize, *inputs),
        ]
    )
    got = tensor(next(asked), what)
    if got.shape != shape and got.shape[::-1] != shape:
        flat = got.ndim == 1 and got.numel() == shape.numel()
        raise Wrong(
            "flat" if flat else "wrong-shape",
            f"{what}: its shape is {tuple(got.shape)}, not {tuple(shape)}{': it is flat' * flat}",
        )
    wrong = _restoring_slips(*_stored(weight), weight)
    close(got, _restored(weight).view(shape), what, rtol=0, atol=0, dtype=weight.dtype, wrong=wrong)
    codes, absmax, *_ = inputs
    scale = absmax.repeat_interleave(weight.block)[: len(codes)]
    by_nf4, right = ((table[codes.int()] * scale).to(weight.dtype).view(shape) for table in (NF4, other))
    fixed = {"other-table": ("the values are NF4's, whatever table is given", by_nf4)}
    close(next(asked), right, f"{what}, another table", rtol=0, atol=0, dtype=weight.dtype, wrong=fixed)
    next(asked)


def _restoring_slips(codes: Tensor, absmax: Tensor, weight: Weight) -> Hints:
    n, dtype, block = len(codes), weight.dtype, weight.block
    low = str(dtype)[6:]
    values, scale = NF4[codes.int()], absmax.repeat_interleave(block)[:n]
    flat = {
        "low-product": (f"the product is taken in {low}; multiply in float32 and round once, at the end",
                        values.to(dtype) * scale.to(dtype)),
        "low-table": (f"the table is rounded to {low} first; multiply in float32", values.to(dtype).float() * scale),
        "low-absmax": (f"absmax is rounded to {low} first; multiply in float32", values * scale.to(dtype).float()),
        "repeat": ("absmax is dealt out with repeat; the weights of a block stand together: repeat_interleave",
                   values * absmax.repeat(block)[:n]),
        "no-absmax": ("absmax is missing: these are the values of the table", values),
        "divided": ("the values are divided by absmax; they are to be multiplied", values / scale),
        "codes-multiplied": ("the codes themselves are multiplied; look them up in the table", codes * scale),
        "one-absmax": ("one absmax is used for all blocks", values * absmax[0]),
        "blocks-of-64": ("blocks of 64 are taken, whatever is asked for",
                         values * absmax.repeat_interleave(64)[:n] if 64 * len(absmax) >= n else values),
        "integer-steps": ("the codes are read as steps of 1/7, as for integers", (codes.float() - 7) / 7 * scale),
    }  # fmt: skip
    return given(flat, lambda value: value.to(dtype).view(weight.shape))


def _blocks(weight: Weight):
    """bitsandbytes' (packed, state) of a random weight, one block a row; zeros fill the last.

    Where a block crosses rows, bitsandbytes 0.50 decodes wrongly on a CPU.
    """
    n, block = math.prod(weight.shape), weight.block
    rows = F.pad(random_weight(n, seed=weight.seed), (0, -n % block)).view(-1, block)
    return bnb.quantize_4bit(rows, blocksize=block, quant_type="nf4")


def _stored(weight: Weight) -> tuple[Tensor, Tensor]:
    """(codes, absmax): (n,) uint8, (ceil(n / block),) float32."""
    packed, state = _blocks(weight)
    return unpacked(packed, math.prod(weight.shape)), state.absmax


def _restored(weight: Weight) -> Tensor:
    """(n,) of the weight's dtype: what bitsandbytes makes of those."""
    packed, state = _blocks(weight)
    state.dtype = weight.dtype
    return bnb.dequantize_4bit(packed, state).view(-1)[: math.prod(weight.shape)]
