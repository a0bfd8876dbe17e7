"""Judging the double quantization that a student wrote; the truth is bitsandbytes on a CPU.

    statistics(quantize_absmax, dequantize_absmax, shape)     absmax in 8 bits, and back

bitsandbytes 0.50 rounds to 8 bits with a coarse look-up on a CPU: a few codes in a thousand are not the nearest, but
nearly always its neighbour. So a code may be off by one, in fewer than 0.5% of the places; weights for which one is
further off are not asked for.
"""

from __future__ import annotations

from collections.abc import Callable

import bitsandbytes.functional as bnb
import torch
import torch.nn.functional as F
from torch import Tensor

from minigpt.checks.closing import by_hand, follows_device, plain, random_weight, vector
from minigpt.checks.comparing import close, show

TABLES = {"signed": bnb.create_dynamic_map(), "unsigned": bnb.create_dynamic_map(signed=False)}  # each (256,) float32
BLOCK, OFF = 256, 0.005  # absmax values that share a second one; share of codes that may be off by one
RESTORED = 1e-2  # how far absmax may be off after 8 bits, relative


def statistics(
    quantize_absmax: Callable, dequantize_absmax: Callable, shape, dtype=torch.float32, seed: int = 0
) -> None:
    """``quantize_absmax(absmax, tables)`` -> (codes, absmax2, offset); ``dequantize_absmax(*those, tables)`` -> absmax.

    ``absmax`` is that of a random weight, whose rows grow a little from the first to the last.
    """
    _forward(quantize_absmax, shape, dtype, seed)
    _back(dequantize_absmax, shape, dtype, seed)


def _stored(shape, dtype, seed: int, double: bool):
    """bitsandbytes' state of the weight; its absmax is float32, or 8-bit codes with ``double``."""
    weight = random_weight(shape, dtype, seed) * torch.linspace(0.9, 1.1, shape[0], dtype=dtype)[:, None]
    return bnb.quantize_4bit(weight, quant_type="nf4", compress_statistics=double)[1]


def _forward(quantize_absmax: Callable, shape, dtype, seed: int) -> None:
    absmax = _stored(shape, dtype, seed, double=False).absmax
    what = f"{len(absmax):,} absmax values"
    got = by_hand(quantize_absmax, absmax, TABLES)
    if not isinstance(got, (tuple, list)) or len(got) != 3:
        raise AssertionError(f"{what}: quantize_absmax returns {show(got)}; (codes, absmax2, offset) are asked for")
    codes, second, offset = got
    offset = _one_offset(offset, second, f"{what}: offset")
    state = _stored(shape, dtype, seed, double=True)
    _offset(offset, absmax, state.offset, f"{what}: offset")
    _second(second, absmax, state.state2.absmax, f"{what}: absmax2")
    codes = vector(codes, len(absmax), torch.uint8, f"{what}: codes", {
        -(-len(absmax) // BLOCK) * BLOCK: "what pads the last block is in it",
    })  # fmt: skip
    if not _near(codes, state.absmax):
        for mistake, wrong in _code_slips(absmax, state.offset, state.state2.absmax):
            if _near(codes, wrong):
                raise AssertionError(f"{what}: codes: {mistake}")
        apart = (codes - state.absmax.long()).abs()
        raise AssertionError(f"{what}: {(apart > 0).sum():,} codes differ, by up to {apart.max()}; they may be off by "
                             f"1, in {OFF:.1%} of the places")  # fmt: skip
    decoded = _decode(codes, state.state2.absmax, state.offset)
    close(decoded, absmax, f"{what}, after your codes", rtol=RESTORED, atol=0)


def _back(dequantize_absmax: Callable, shape, dtype, seed: int) -> None:
    state = _stored(shape, dtype, seed, double=True)
    parts = state.absmax, state.state2.absmax, state.offset
    what = f"{len(state.absmax):,} absmax values, restored"
    back = by_hand(dequantize_absmax, *parts, TABLES)
    back = vector(back, len(state.absmax), torch.float32, what, {
        -(-len(state.absmax) // BLOCK): "one for each block of 256",
    })  # fmt: skip
    truth = bnb.dequantize_blockwise(state.absmax, state.state2) + state.offset
    close(back, truth, what, rtol=1e-6, atol=0, wrong=_restored_slips(*parts))
    follows_device(dequantize_absmax, *parts, TABLES)


def _near(codes: Tensor, truth: Tensor) -> bool:
    apart = (codes.long() - truth.long()).abs()
    return bool(apart.max() <= 1 and (apart > 0).float().mean() < OFF)


def _rows(x: Tensor, block: int = BLOCK) -> Tensor:
    return F.pad(x, (0, -len(x) % block)).view(-1, block)


def _decode(codes: Tensor, second: Tensor, offset: Tensor, name: str = "signed") -> Tensor:
    return TABLES[name][codes.long()] * second.repeat_interleave(BLOCK)[: len(codes)] + offset


def _one_offset(offset, second, what: str) -> Tensor:
    """``offset`` as a tensor ()."""
    if isinstance(offset, float):
        raise AssertionError(
            f"{what}: a float; keep it a tensor, as absmax.mean() makes it: it is stored with the weight"
        )
    if plain(offset, what).numel() > 1:
        if isinstance(second, Tensor) and second.numel() == 1:
            raise AssertionError(f"{what}: (codes, offset, absmax2) is returned; the offset comes last")
        raise AssertionError(f"{what}: there are {offset.numel()} of them; one offset serves the whole tensor")
    return offset.reshape(())


def _offset(got: Tensor, absmax: Tensor, truth: Tensor, what: str) -> None:
    wrong = {
        "nothing is subtracted; absmax is positive, and half of a signed table would lie idle": torch.tensor(0.0),
        "the smallest absmax; the mean is asked for": absmax.min(),
        "the largest absmax; the mean is asked for": absmax.max(),
        "the median; the mean is asked for": absmax.median(),
        "the middle of the range; the mean is asked for": (absmax.max() + absmax.min()) / 2,
        "the mean of the first block of 256; the mean of all is asked for": absmax[:BLOCK].mean(),
        "what pads the last block is in the mean": _rows(absmax).mean(),
    }
    close(got, truth, what, rtol=1e-6, atol=0, dtype=torch.float32, wrong=wrong)


def _second(got, absmax: Tensor, truth: Tensor, what: str) -> None:
    counts = {-(-len(absmax) // n): f"one for each {n}; 256 absmax values share one" for n in (64, 128, 4096)}
    counts |= {len(absmax) // BLOCK: "the last, short block has none", 1: "one for the whole tensor; 256 share one"}
    got = vector(got, len(truth), torch.float32, what, counts)
    x = _rows(absmax - absmax.mean())
    close(got, truth, what, rtol=1e-6, atol=0, wrong={
        "the offset is not subtracted before the largest is taken": _rows(absmax).amax(1),
        "the largest value; the largest absolute value is asked for": x.amax(1), "the smallest value": x.amin(1),
        "what pads the last block counts: subtract first, then pad with zeros": (
            _rows(absmax) - absmax.mean()
        ).abs().amax(1),
        "each block has an offset of its own; there is one for the tensor": (
            _rows(absmax) - _rows(absmax).mean(1, keepdim=True)
        ).abs().amax(1),
        "divided by 127, as for integers; the table's largest value is 1": truth / 127,
    })  # fmt: skip


def _code_slips(absmax: Tensor, offset: Tensor, second: Tensor) -> list[tuple[str, Tensor]]:
    def nearest(x: Tensor, table: Tensor) -> Tensor:
        return torch.bucketize(x.contiguous(), (table[1:] + table[:-1]) / 2)

    n, signed, unsigned = len(absmax), TABLES["signed"], TABLES["unsigned"]
    shifted, scale = absmax - offset, second.repeat_interleave(BLOCK)[: len(absmax)]
    x, sign = shifted / scale, "the sign is lost; absmax - offset has both"
    integers, dealt = "equal steps, as for integers; look for the nearest value of the table", second.repeat(BLOCK)[:n]
    slips = [
        ("they point into the unsigned table; absmax - offset has both signs", nearest(x, unsigned)),
        (sign, nearest(x.abs(), unsigned)), (sign, nearest(x.abs(), signed)),
        ("the largest value below is taken, not the nearest", torch.bucketize(x, signed, right=True) - 1),
        ("the smallest value above is taken, not the nearest", torch.bucketize(x, signed)),
        (integers, (127 * x).round() + 127), (integers, (127 * x).round() + 128),
        ("the offset is not subtracted", nearest(absmax / scale, signed)),
        ("absmax - offset is not divided by absmax2", nearest(shifted, signed)),
        ("absmax2 is dealt out with repeat; 256 neighbours share one: repeat_interleave",
         nearest(shifted / dealt, signed)),
    ]  # fmt: skip
    return [(mistake, codes.clamp(0, 255)) for mistake, codes in slips]


def _restored_slips(codes: Tensor, second: Tensor, offset: Tensor) -> dict[str, Tensor]:
    values, scale = TABLES["signed"][codes.int()], second.repeat_interleave(BLOCK)[: len(codes)]
    return {
        "the offset is not added again": values * scale, "the offset is subtracted once more": values * scale - offset,
        "absmax2 is missing": values + offset, "the offset is multiplied too: add it last": (values + offset) * scale,
        "absmax2 is dealt out with repeat; 256 neighbours share one: repeat_interleave": (
            values * second.repeat(BLOCK)[: len(codes)] + offset
        ),
        "the codes are looked up in the unsigned table": _decode(codes, second, offset, "unsigned"),
        "the codes are read as steps of 1/127, as for integers": (codes.float() - 127) / 127 * scale + offset,
    }  # fmt: skip
