"""Judging the double quantization that a student wrote; the truth is bitsandbytes on a CPU.

    quantizes(quantize_absmax, weight)       absmax in 8 bits
    alike(quantize_absmax, n)                n of them that are equal
    restores(dequantize_absmax, weight)      and back

bitsandbytes 0.50 rounds to 8 bits with a coarse look-up on a CPU: a few codes in a thousand are not the nearest, but
nearly always its neighbour. So a code may be off by one, in fewer than 0.5% of the places; weights for which one is
further off are not asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import bitsandbytes.functional as bnb
import torch
import torch.nn.functional as F
from torch import Tensor

from minigpt.checks.closing import asked_first, knows
from minigpt.checks.comparing import close, show
from minigpt.checks.four_bits.asking import Weight, ask, follows_device, tensor, vector
from minigpt.checks.naming import Hints
from minigpt.checks.verdict import Wrong

knows(__name__)
TABLES = {"signed": bnb.create_dynamic_map(), "unsigned": bnb.create_dynamic_map(signed=False)}  # each (256,) float32
OTHERS = {name: table**3 for name, table in TABLES.items()}  # no table of anybody's
BLOCK, OFF = 256, 0.005  # absmax values that share a second one; share of codes that may be off by one
RESTORED = 1e-2  # how far absmax may be off after 8 bits, relative


def quantizes(quantize_absmax: Callable, weight: Weight) -> None:
    """``quantize_absmax(absmax, tables)`` -> (codes, absmax2, offset), of a weight whose rows grow a little."""
    absmax = _stored(weight, double=False).absmax
    what = f"{len(absmax):,} absmax values"
    got = ask(quantize_absmax, absmax, TABLES)
    if not isinstance(got, (tuple, list)) or len(got) != 3:
        raise Wrong("no-triple", f"{what}: quantize_absmax returns {show(got)}; (codes, absmax2, offset) are asked for")
    codes, second, offset = got
    offset = _one_offset(offset, second, f"{what}: offset")
    state = _stored(weight, double=True)
    _offset(offset, absmax, state.offset, f"{what}: offset")
    _second(second, absmax, state.state2.absmax, f"{what}: absmax2")
    padded = {"padding": ("what pads the last block is in it", -(-len(absmax) // BLOCK) * BLOCK)}
    codes = vector(codes, len(absmax), torch.uint8, f"{what}: codes", padded)
    _codes(codes, state, absmax, f"{what}: codes")
    decoded = _decode(codes, state.state2.absmax, state.offset)
    close(decoded, absmax, f"{what}, after your codes", rtol=RESTORED, atol=0)


def quantizes_all(quantize_absmax: Callable, case: Weight | int) -> None:
    """``quantizes`` of a weight, or ``alike`` of a number of values."""
    if isinstance(case, int):
        alike(quantize_absmax, case)
    else:
        quantizes(quantize_absmax, case)


def alike(quantize_absmax: Callable, n: int) -> None:
    """``n`` absmax values that are all alike: nothing is left to scale, and they come back as they are."""
    what, absmax = f"{n} absmax values that are all 0.5", torch.full((n,), 0.5)
    got = ask(quantize_absmax, absmax, TABLES)
    if not isinstance(got, (tuple, list)) or len(got) != 3:
        raise Wrong("no-triple", f"{what}: quantize_absmax returns {show(got)}; (codes, absmax2, offset) are asked for")
    codes, second, offset = got
    codes = vector(codes, n, torch.uint8, f"{what}: codes")
    second = vector(second, -(-n // BLOCK), torch.float32, f"{what}: absmax2")
    close(_decode(codes, second, _one_offset(offset, second, what)), absmax, f"{what}, and back", rtol=0, atol=0)


def restores(dequantize_absmax: Callable, weight: Weight) -> None:
    """``dequantize_absmax(codes, absmax2, offset, tables)`` -> absmax."""
    state = _stored(weight, double=True)
    parts = state.absmax, state.state2.absmax, state.offset
    what = f"{len(state.absmax):,} absmax values, restored"
    second_only = {"one-a-block": ("one for each block of 256", -(-len(state.absmax) // BLOCK))}
    asked = asked_first(
        [partial(ask, dequantize_absmax, *parts, TABLES), partial(ask, dequantize_absmax, *parts, OTHERS),
         partial(follows_device, dequantize_absmax, *parts, TABLES)]
    )  # fmt: skip
    back = vector(next(asked), len(state.absmax), torch.float32, what, second_only)
    truth = bnb.dequantize_blockwise(state.absmax, state.state2) + state.offset
    close(back, truth, what, rtol=1e-6, atol=0, wrong=_restored_slips(*parts))
    right = OTHERS["signed"][parts[0].long()] * parts[1].repeat_interleave(BLOCK)[: len(truth)] + parts[2]
    fixed = {"other-table": ("the values are those of bitsandbytes' table, whatever table is given", truth)}
    close(next(asked), right, f"{what}, by another table", rtol=1e-6, atol=0, wrong=fixed)
    next(asked)


def _stored(weight: Weight, double: bool):
    """bitsandbytes' state of the weight; its absmax is float32, or 8-bit codes with ``double``."""
    growing = torch.linspace(0.9, 1.1, weight.shape[0], dtype=weight.dtype)[:, None]
    return bnb.quantize_4bit(weight.tensor() * growing, quant_type="nf4", compress_statistics=double)[1]


def _rows(x: Tensor, block: int = BLOCK) -> Tensor:
    return F.pad(x, (0, -len(x) % block)).view(-1, block)


def _decode(codes: Tensor, second: Tensor, offset: Tensor, name: str = "signed") -> Tensor:
    return TABLES[name][codes.long()] * second.repeat_interleave(BLOCK)[: len(codes)] + offset


def _one_offset(offset, second, what: str) -> Tensor:
    """``offset`` as a tensor ()."""
    if isinstance(offset, float):
        raise Wrong(
            "offset-float",
            f"{what}: a float; keep it a tensor, as absmax.mean() makes it: it is stored with the weight",
        )
    if tensor(offset, what).numel() > 1:
        if isinstance(second, Tensor) and second.numel() == 1:
            raise Wrong("swapped", f"{what}: (codes, offset, absmax2) is returned; the offset comes last")
        raise Wrong("many-offsets", f"{what}: there are {offset.numel()} of them; one offset serves the whole tensor")
    return offset.reshape(())


def _offset(got: Tensor, absmax: Tensor, truth: Tensor, what: str) -> None:
    wrong = {
        "offset-zero": ("nothing is subtracted; absmax is positive, and half of a signed table would lie idle",
                        torch.tensor(0.0)),
        "offset-smallest": ("that is the smallest absmax; the mean is asked for", absmax.min()),
        "offset-largest": ("that is the largest absmax; the mean is asked for", absmax.max()),
        "offset-median": ("that is the median; the mean is asked for", absmax.median()),
        "offset-middle": ("that is the middle of the range; the mean is asked for", (absmax.max() + absmax.min()) / 2),
        "offset-first-block": ("that is the mean of the first block of 256; the mean of all is asked for",
                               absmax[:BLOCK].mean()),
        "padding": ("what pads the last block is in the mean", _rows(absmax).mean()),
    }  # fmt: skip
    close(got, truth, what, rtol=1e-6, atol=0, dtype=torch.float32, wrong=wrong)


def _second(got, absmax: Tensor, truth: Tensor, what: str) -> None:
    counts = {"one-for-all": ("that is one for the whole tensor; 256 absmax values share one", 1),
              "short-block-lost": ("the last, short block has none", len(absmax) // BLOCK)}  # fmt: skip
    counts |= {f"second-each-{n}": (f"that is one for every {n}; 256 absmax values share one", -(-len(absmax) // n))
               for n in (64, 128, 4096)}  # fmt: skip
    got = vector(got, len(truth), torch.float32, what, counts)
    x, rows = _rows(absmax - absmax.mean()), _rows(absmax)
    close(got, truth, what, rtol=1e-6, atol=0, wrong={
        "not-subtracted": ("the offset is not subtracted before the largest is taken", rows.amax(1)),
        "no-abs": ("that is the largest value; the largest absolute value is asked for", x.amax(1)),
        "absmin": ("that is the smallest value; the largest absolute value is asked for", x.amin(1)),
        "padding": ("what pads the last block counts: subtract first, then pad with zeros",
                    (rows - absmax.mean()).abs().amax(1)),
        "offset-a-block": ("each block has an offset of its own; there is one for the tensor",
                           (rows - rows.mean(1, keepdim=True)).abs().amax(1)),
        "divided-by-127": ("it is divided by 127, as for integers; the table's largest value is 1", truth / 127),
    })  # fmt: skip


def _codes(codes: Tensor, state, absmax: Tensor, what: str) -> None:
    if _near(codes, state.absmax):
        return
    for id, sentence, wrong in _code_slips(absmax, state.offset, state.state2.absmax):
        if _near(codes, wrong.clamp(0, 255)):
            raise Wrong(id, f"{what}: {sentence}")
    apart = (codes - state.absmax.long()).abs()
    raise Wrong(
        "differs",
        f"{what}: {(apart > 0).sum():,} codes differ, by up to {apart.max()}; they may be off by 1, in "
        f"{OFF:.1%} of the places",
    )


def _near(codes: Tensor, truth: Tensor) -> bool:
    apart = (codes.long() - truth.long()).abs()
    return bool(apart.max() <= 1 and (apart > 0).float().mean() < OFF)


def _code_slips(absmax: Tensor, offset: Tensor, second: Tensor) -> list[tuple[str, str, Tensor]]:
    def nearest(x: Tensor, table: Tensor) -> Tensor:
        return torch.bucketize(x.contiguous(), (table[1:] + table[:-1]) / 2)

    n, signed, unsigned = len(absmax), TABLES["signed"], TABLES["unsigned"]
    shifted, scale = absmax - offset, second.repeat_interleave(BLOCK)[: len(absmax)]
    x, dealt = shifted / scale, second.repeat(BLOCK)[:n]
    sign = "the sign is lost; absmax - offset has both"
    integers = "they count equal steps, as for integers; look for the nearest value of the table"
    return [
        ("unsigned", "they point into the unsigned table; absmax - offset has both signs", nearest(x, unsigned)),
        ("sign-lost", sign, nearest(x.abs(), unsigned)), ("sign-lost", sign, nearest(x.abs(), signed)),
        ("largest-below", "the largest value below is taken, not the nearest",
         torch.bucketize(x, signed, right=True) - 1),
        ("smallest-above", "the smallest value above is taken, not the nearest", torch.bucketize(x, signed)),
        ("integer-steps", integers, (127 * x).round() + 127), ("integer-steps", integers, (127 * x).round() + 128),
        ("not-subtracted", "the offset is not subtracted", nearest(absmax / scale, signed)),
        ("not-divided", "absmax - offset is not divided by absmax2", nearest(shifted, signed)),
        ("repeat", "absmax2 is dealt out with repeat; 256 neighbours share one: repeat_interleave",
         nearest(shifted / dealt, signed)),
    ]  # fmt: skip


def _restored_slips(codes: Tensor, second: Tensor, offset: Tensor) -> Hints:
    values, scale = TABLES["signed"][codes.int()], second.repeat_interleave(BLOCK)[: len(codes)]
    return {
        "offset-forgotten": ("the offset is not added again", values * scale),
        "offset-subtracted": ("the offset is subtracted once more", values * scale - offset),
        "no-second": ("absmax2 is missing", values + offset),
        "offset-multiplied": ("the offset is multiplied too: add it last", (values + offset) * scale),
        "repeat": ("absmax2 is dealt out with repeat; 256 neighbours share one: repeat_interleave",
                   values * second.repeat(BLOCK)[: len(codes)] + offset),
        "unsigned": ("the codes are looked up in the unsigned table", _decode(codes, second, offset, "unsigned")),
        "integer-steps": ("the codes are read as steps of 1/127, as for integers",
                          (codes.float() - 127) / 127 * scale + offset),
    }  # fmt: skip
