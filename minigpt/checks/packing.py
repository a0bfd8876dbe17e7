"""Judging how a student packs 4-bit codes and makes weights of them again; the truth is bitsandbytes on a CPU.

    packing(pack, unpack, n)              two codes a byte
    restoring(dequantize, shape, ...)     code * absmax in float32, then the weight's dtype

A round trip would prove nothing, since the wrong order of the halves inverts itself: ``pack`` is held to the bytes of
bitsandbytes, and ``unpack`` is given them.

Left out: the half byte that an odd number of codes leaves over; it is free.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import bitsandbytes.functional as bnb
import torch
import torch.nn.functional as F
from torch import Tensor

from minigpt.checks.closing import by_hand, count, follows_device, plain, random_weight, vector
from minigpt.checks.comparing import close
from minigpt.checks.quantizing import NF4, unpacked


def packing(pack: Callable, unpack: Callable, n: int, seed: int = 0) -> None:
    """``pack(codes)`` -> bytes and ``unpack(packed, n)`` -> codes, against the bytes of a weight of ``n`` elements."""
    _pack(pack, n, seed)
    _unpack(unpack, n, seed)


def _bytes(n: int, seed: int) -> Tensor:
    """(ceil(n / 2),) uint8: bitsandbytes' bytes of a random weight."""
    return bnb.quantize_4bit(random_weight(n, seed=seed), quant_type="nf4")[0].view(-1)


def _pack(pack: Callable, n: int, seed: int) -> None:
    what, size = f"pack, {n} codes", (n + 1) // 2
    got = vector(by_hand(pack, unpacked(_bytes(n, seed), n)), size, torch.uint8, what, {
        n: "one code a byte: nothing is packed", n // 2: "the last of an odd number of codes is lost",
    })  # fmt: skip
    right = _bytes(n, seed)
    codes = F.pad(unpacked(right, n), (0, n % 2))
    free = torch.full((size,), 255)
    free[-1] = 240 if n % 2 else 255  # the low half of the last byte, where n is odd, is free
    (even, odd), (first, second) = codes.view(-1, 2).unbind(1), codes.view(2, -1)
    for mistake, wrong in {
        "the even code is in the low half of its byte; bitsandbytes has it in the high half": odd << 4 | even,
        "the first half of the codes is in the high halves; neighbours share a byte": first << 4 | second,
        "the second half of the codes is in the high halves; neighbours share a byte": second << 4 | first,
        "the even code is not shifted by four bits": even | odd,
        "+ binds more strongly than <<: even << 4 + odd is even << (4 + odd); write |, or parentheses": (
            even << (4 + odd)
        ),
        "the odd codes are missing": even << 4,
        "the even codes are missing": odd,
    }.items():
        if ((got ^ right) & free).any() and not ((got ^ wrong) & free).any():
            raise AssertionError(f"{what}: {mistake}")
    if ((got ^ right) & free).any():
        raise AssertionError(f"{what}: {count(got & free, right & free, 'bytes')}")


def _unpack(unpack: Callable, n: int, seed: int) -> None:
    what, size = f"unpack, {n} codes", (n + 1) // 2
    got = vector(by_hand(unpack, _bytes(n, seed), n), n, torch.uint8, what, {
        2 * size: "the half byte that is left over is in it", size: "one code a byte; there are two",
    })  # fmt: skip
    packed = _bytes(n, seed)
    high, low, codes = packed >> 4, packed & 15, unpacked(packed, n)
    for mistake, wrong in {
        "the low half of a byte comes first; the even code is in the high half": torch.stack([low, high], 1).view(-1),
        "all high halves come first, then all low ones; they alternate": torch.cat([high, low]),
        "all low halves come first, then all high ones; they alternate": torch.cat([low, high]),
        "the high half is still in the odd codes; mask it: byte & 15": torch.stack([high, packed], 1).view(-1),
        "the high half is not shifted down by four bits": torch.stack([packed & 240, low], 1).view(-1),
    }.items():
        if (got != codes).any() and (got == wrong[:n]).all():
            raise AssertionError(f"{what}: {mistake}")
    if (got != codes).any():
        raise AssertionError(f"{what}: {count(got, codes)}")
    follows_device(unpack, packed, n)


def restoring(dequantize: Callable, shape, dtype=torch.float32, block: int = 64, seed: int = 0) -> None:
    """``dequantize(codes, absmax, code, shape, dtype, block)`` -> the weight; every value must be bitsandbytes'."""
    what = f"a weight of {tuple(shape)}, blocks of {block}, as {str(dtype)[6:]}"
    n, shape = math.prod(shape), torch.Size(shape)
    got = plain(by_hand(dequantize, *_stored(n, block, seed), NF4, shape, dtype, block), what)
    if got.shape != shape and got.shape[::-1] != shape:
        flat = " It is flat: .view(shape)" if got.shape == (n,) else ""
        raise AssertionError(f"{what}: its shape is {tuple(got.shape)}, not {tuple(shape)}.{flat}")
    codes, absmax = _stored(n, block, seed)
    values, scale = NF4[codes.int()], absmax.repeat_interleave(block)[:n]
    low = values.to(dtype) * scale.to(dtype)
    wrong = {
        f"the product is taken in {str(dtype)[6:]}; multiply in float32 and round once, at the end": low,
        f"the table is rounded to {str(dtype)[6:]} first; multiply in float32": values.to(dtype).float() * scale,
        f"absmax is rounded to {str(dtype)[6:]} first; multiply in float32": values * scale.to(dtype).float(),
        "absmax is dealt out with repeat; the weights of a block stand together: repeat_interleave": (
            values * absmax.repeat(block)[:n]
        ),
        "absmax is missing: these are the values of the table": values,
        "divided by absmax; multiply": values / scale,
        "the codes themselves are multiplied; look them up in the table": codes * scale,
        "one absmax is used for all blocks": values * absmax[0],
        "the codes are read as steps of 1/7, as for integers": (codes.float() - 7) / 7 * scale,
    }
    wrong = {mistake: value.to(dtype).view(shape) for mistake, value in wrong.items()}
    truth = _restored(n, block, seed, dtype).view(shape)
    close(got, truth, what, rtol=0, atol=0, dtype=dtype, wrong=wrong)
    follows_device(dequantize, codes, absmax, NF4, shape, dtype, block)


def _blocks(n: int, block: int, seed: int):
    """bitsandbytes' (packed, state) of a random weight, one block a row; zeros fill the last.

    Where a block crosses rows, bitsandbytes 0.50 decodes wrongly on a CPU.
    """
    rows = F.pad(random_weight(n, seed=seed), (0, -n % block)).view(-1, block)
    return bnb.quantize_4bit(rows, blocksize=block, quant_type="nf4")


def _stored(n: int, block: int, seed: int) -> tuple[Tensor, Tensor]:
    """(codes, absmax): (n,) uint8, (ceil(n / block),) float32."""
    packed, state = _blocks(n, block, seed)
    return unpacked(packed, n), state.absmax


def _restored(n: int, block: int, seed: int, dtype: torch.dtype) -> Tensor:
    """(n,) of ``dtype``: what bitsandbytes makes of those."""
    packed, state = _blocks(n, block, seed)
    state.dtype = dtype
    return bnb.dequantize_4bit(packed, state).view(-1)[:n]
