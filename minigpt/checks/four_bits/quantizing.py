"""Judging an NF4 quantizer that a student wrote: the truth is bitsandbytes on a CPU, code for code.

    table(codebook, end)           16 values from normal quantiles
    blocks(quantize, weight)       codes and absmax of a random weight
    by_table(quantize, code)       the same with another table
    edges(quantize)                ties and weights next to one, tiny weights, blocks of zeros

Where answer and truth differ, the answer is compared with what each known slip would give.

Left out: the codes of a block of zeros, which are free as long as they decode to zeros.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import NormalDist

import bitsandbytes.functional as bnb
import torch
import torch.nn.functional as F
from torch import Tensor

from minigpt import nf4
from minigpt.checks.closing import knows
from minigpt.checks.comparing import close, show
from minigpt.checks.four_bits.asking import Weight, ask, differing, random_weight, tensor, vector
from minigpt.checks.naming import Hints
from minigpt.checks.verdict import Wrong

knows(__name__)
NF4 = bnb.get_4bit_type("nf4", device="cpu")  # (16,) float32


# ---------------------------------------------------------------- the table


def table(codebook: Callable, end: float) -> None:
    """``codebook(end)``: (16,) float32, eight quantiles above zero, seven below, equal steps of probability."""
    what = f"codebook({end:g})"
    values = vector(ask(codebook, end, infinite="the quantiles of 0 and of 1 are infinite"), 16, torch.float32, what, {
        "seven-above": ("seven on each side and zero: one more is needed, above", 15),
        "one-side": ("only one side of zero", 8),
        "eight-below": ("eight on each side and zero: one side has seven", 17),
    })  # fmt: skip
    if not (values[1:] >= values[:-1]).all():
        raise Wrong("not-ascending", f"{what}: the values are not in ascending order")
    if (values == 0).sum() == 0:
        raise Wrong("no-zero", f"{what}: zero is not among the values; it must be, so that a weight of 0 stays 0")
    if len(values.unique()) < 16:
        raise Wrong(
            "value-twice",
            f"{what}: {len(values.unique())} different values, 16 are asked for; does each "
            "side begin at probability 1/2, which is zero itself?",
        )
    right = torch.tensor(nf4.derive_code(end), dtype=torch.float64)
    close(values, right, what, rtol=0, atol=5e-6, wrong=_table_mistakes(end, right))


def _table_mistakes(end: float, right: Tensor) -> Hints:
    quantile = NormalDist().inv_cdf

    def made(above: int, below: int, end: float = end, short: int = 0) -> Tensor:
        up = [quantile(0.5 + (end - 0.5) * k / (above + short)) for k in range(1, above + 1)]
        down = [-quantile(0.5 + (end - 0.5) * k / (below + short)) for k in range(1, below + 1)]
        return torch.tensor(sorted([*down, 0.0, *up]), dtype=torch.float64)

    raw, ninths, (low, high) = made(8, 7), made(8, 7, short=1), (-1 + torch.arange(8) / 7, torch.arange(1, 9) / 8)
    other = {e: made(8, 7, e) for e in (0.9677083, 15 / 16, 31 / 32, 29 / 30, 0.95, 0.99, 0.999)}
    return {
        "not-normalized": ("the values are not divided by the largest; they must lie in [-1, 1]", raw),
        "sides-swapped": ("seven values above zero and eight below: it is the other way round", -right.flip(0)),
        "equal-values": ("the values have equal steps; it is the probability that has", torch.cat([low, high])),
        "eight-steps-below": (
            "eight steps on both sides: the seven values below stop short of the end",
            torch.tensor(sorted([*made(8, 8)[1:8].tolist(), *raw[7:].tolist()])) / raw.max()),
        "short-steps": ("the last step stops short of the end: eight steps, and seven, lead to the end itself",
                        ninths / ninths.max()),
        **{f"fixed-end-{e:.3f}".replace(".", "-"): (f"the end is {e:g}, whatever is asked for", x / x.max())
           for e, x in other.items() if e != end},
    }  # fmt: skip


# ---------------------------------------------------------------- quantize


def blocks(quantize: Callable, weight: Weight, code: Tensor = NF4) -> None:
    """``quantize(weight, code, block)`` -> (codes, absmax); ``code`` may be another table than NF4."""
    what = weight.text + (f", a table of {len(code)} values" if code is not NF4 else "")
    judge(quantize, weight.tensor(), code, weight.block, what)


def by_table(quantize: Callable, code: Tensor) -> None:
    blocks(quantize, Weight((30, 70), seed=5), code)


def edges(quantize: Callable) -> None:
    """What common weights do not show: ties, the rounding of 1 / absmax, tiny weights, blocks of zeros."""
    middle = (NF4[1:].double() + NF4[:-1].double()) / 2
    ties = middle[middle == middle.float()].float()  # absmax is 1, so each of these is x itself
    judge(quantize, torch.cat([torch.ones(1), ties]), NF4, 64, "weights halfway between two codes")
    judge(quantize, sensitive(), NF4, 64, "weights next to the middle of two codes")
    judge(quantize, random_weight((20, 64), seed=3, size=1e-30), NF4, 64, "weights around 1e-30")
    _zeros(quantize, [1], "a weight whose second block is zeros")
    _zeros(quantize, [0, 3], "a weight whose first and last blocks are zeros, the last of them short")
    _zeros(quantize, [0, 1, 2, 3], "a weight of zeros")


def _zeros(quantize: Callable, empty: list[int], what: str) -> None:
    """Four blocks, the last a short one; those in ``empty`` are zeros, and decode to zeros. Their codes are free."""
    weight = F.pad(random_weight(240, seed=5), (0, 16)).view(4, 64)
    weight[empty] = 0
    flat = weight.flatten()[:240]
    codes, absmax = _pair(ask(quantize, flat, NF4, 64), what)
    codes, absmax = vector(codes, 240, torch.uint8, f"{what}: codes"), vector(absmax, 4, None, f"{what}: absmax")
    right, truth = rounded(flat, NF4)
    zeros = torch.zeros(256, dtype=torch.bool).view(4, 64).index_fill(0, torch.tensor(empty), True).flatten()[:240]
    scale = absmax.repeat_interleave(64)[:240]
    if codes.max() > 15 or (NF4[codes.long()] * scale)[zeros].any():
        raise Wrong("zeros", f"{what}: it does not decode to zeros")
    if (codes != right)[~zeros].any() or (absmax != truth.double())[[i for i in range(4) if i not in empty]].any():
        raise Wrong("zeros-elsewhere", f"{what}: the blocks beside it are not what they are without it")


def sensitive() -> Tensor:
    """Blocks (absmax, w, 0 ...): in float32, w * (1 / absmax) and w / absmax lie on two sides of a midpoint."""
    absmax = random_weight(20000, seed=3).abs() + 0.02
    pairs = []
    for middle in (NF4[8] / 2, NF4[6] / 2):  # with zero as a neighbour, so a distance to either is exact
        for ulps in range(-2, 3):
            w = (middle * absmax).view(torch.int32).add(ulps).view(torch.float32)
            found = (w * (1 / absmax) > middle) != (w / absmax > middle)
            pairs.append(torch.stack([absmax[found], w[found]], dim=1)[:40])
    return F.pad(torch.cat(pairs), (0, 62))


def judge(quantize: Callable, weight: Tensor, code: Tensor, block: int, what: str) -> None:
    """Codes and absmax of any tensor and table: bitsandbytes' for NF4, else the nearest values."""
    n = weight.numel()
    codes, absmax = _pair(ask(quantize, weight, code, block), what)
    if code is NF4:
        packed, state = bnb.quantize_4bit(weight, blocksize=block, quant_type="nf4")
        right, truth = unpacked(packed, n), state.absmax
    else:
        right, truth = rounded(weight, code, block)
    _absmax(absmax, truth, weight, block, what)
    codes = vector(codes, n, torch.uint8, f"{what}: codes", {
        "padding": ("what pads the last block is in it", len(truth) * block),
        "code-a-block": ("one for each block", len(truth)), "packed": ("they are packed already", (n + 1) // 2),
    })  # fmt: skip
    if (codes == right).all():
        return
    if truth.max() < 1e-20 and (code[codes.clamp(max=len(code) - 1)].abs() <= code[right.long()].abs()).all():
        raise Wrong(
            "guarded",
            f"{what}: what guards against 1 / 0 changes a block as small as this; only a block of zeros needs a guard "
            f"({differing(codes, right)})",
        )
    for id, (sentence, slip) in _slips(weight, code).items():
        if (codes == rounded(weight, code, block, **slip)[0]).all():
            raise Wrong(id, f"{what}: {sentence} ({differing(codes, right)})")
    for id, (sentence, wrong) in _other_codes(weight, code, block, right, truth).items():
        if (codes == wrong).float().mean() > 0.99:
            raise Wrong(id, f"{what}: {sentence} ({differing(codes, right)})")
    i = int((codes != right).nonzero()[0])
    raise Wrong(
        "differs",
        f"{what}: {differing(codes, right)}. The first is number {i}, {weight.reshape(-1)[i]:.6g} in a "
        f"block of absmax {truth[i // block]:.6g}: yours {codes[i]}, right {right[i]}",
    )


def rounded(
    weight: Tensor, code: Tensor, block: int = 64, *, scale=lambda rows: rows.abs().amax(1), divide=False,
    dtype=torch.float32, right=False, shift=None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(codes, absmax) as bitsandbytes makes them, or with a slip."""
    flat = weight.reshape(-1).to(dtype)
    rows = F.pad(flat, (0, -len(flat) % block)).view(-1, block)
    absmax = scale(rows)
    x = rows / absmax[:, None] if divide else rows * (1 / absmax)[:, None]
    x = x if dtype == torch.float64 else x.float()
    codes = _pick(x, code, right) if shift is None else torch.bucketize(x.float(), code, right=shift < 0) + shift
    return codes.view(-1)[: len(flat)].clamp(0, len(code) - 1).to(torch.uint8), absmax.float()


def _pick(x: Tensor, code: Tensor, right: bool = False) -> Tensor:
    """Midpoints below x: the nearest value; with ``right`` a tie takes the upper."""
    return torch.bucketize(x, ((code[1:] + code[:-1]) / 2).to(x.dtype), right=right)


def unpacked(packed: Tensor, n: int) -> Tensor:
    """(n,) uint8 from bitsandbytes' bytes."""
    flat = packed.reshape(-1)
    return torch.stack([flat >> 4, flat & 15], dim=1).view(-1)[:n]


# ---------------------------------------------------------------- slips


def _slips(weight: Tensor, code: Tensor) -> Hints:
    """What ``rounded`` is told to make each mistake."""
    slips: Hints = {
        "tie-up": ("a number halfway between two codes takes the upper; bitsandbytes takes the lower",
                   dict(right=True)),
        "division": ("w / absmax rounds otherwise than bitsandbytes' w * (1 / absmax); take the reciprocal first",
                     dict(divide=True)),
        "division-and-tie-up": ("two things: (1) it is w * (1 / absmax), not w / absmax; (2) a tie takes the "
                                "lower code, not the upper",
                                dict(divide=True, right=True)),
        "float64": ("the arithmetic is in float64; bitsandbytes' is in float32", dict(dtype=torch.float64)),
        "largest-below": ("the largest value below x is taken, not the nearest", dict(shift=-1)),
        "smallest-above": ("the smallest value above x is taken, not the nearest", dict(shift=0)),
        "not-divided": ("the numbers are not divided by absmax", dict(scale=lambda rows: torch.ones(len(rows)))),
        "one-absmax": ("the numbers are scaled by one absmax for the whole tensor; each block has its own",
                       dict(scale=lambda rows: rows.abs().max().expand(len(rows)))),
        "no-abs": ("the numbers are scaled by their block's largest value; the largest absolute value is asked for",
                   dict(scale=lambda rows: rows.amax(1))),
    }  # fmt: skip
    if weight.dtype == torch.float32:
        return slips
    low = f"x is computed in {str(weight.dtype)[6:]}; make weight and absmax float32 first"
    first: Hints = {
        "low-precision": (low, dict(dtype=weight.dtype)),
        "low-precision-division": (f"{low}, and multiply", dict(dtype=weight.dtype, divide=True)),
    }
    return first | slips


def _other_codes(weight: Tensor, code: Tensor, block: int, right: Tensor, truth: Tensor) -> Hints:
    """Codes that are no ``rounded``."""
    n, flat, steps = weight.numel(), weight.reshape(-1).float(), (len(code) - 1) // 2
    return {
        "descending": ("the codes count from the largest value down; 0 is the smallest", len(code) - 1 - right.int()),
        "argmin-of-x-minus-value": ("argmin without abs: the smallest x - value is that of the largest value",
                                    torch.full((n,), len(code) - 1)),
        "argmin-of-value-minus-x": ("argmin without abs: the smallest value - x is that of the smallest value",
                                    torch.zeros(n)),
        "repeat": (f"absmax is dealt out with repeat; the {block} numbers of a block stand together: repeat_interleave",
                   _pick(flat * (1 / truth).repeat(block)[:n], code)),
        "integer-steps": (
            "the codes count equal steps, as for integers; look for the nearest value of the table",
            (steps * flat / truth.repeat_interleave(block)[:n]).round() + steps),
    }  # fmt: skip


def _absmax(got, truth: Tensor, weight: Tensor, block: int, what: str) -> None:
    n = weight.numel()
    own = f"each block of {block} numbers has its own"
    counts = {f"absmax-each-{other}": (f"that is one for every {other} numbers; {own}", -(-n // other))
              for other in (32, 64, 128, 256) if other != block}  # fmt: skip
    if weight.ndim > 1:
        counts |= {"absmax-a-column": (f"that is one for each column of the matrix; {own}", weight.shape[-1]),
                   "absmax-a-row": (f"that is one for each row of the matrix; {own}", weight.shape[0])}  # fmt: skip
    counts |= {
        "absmax-a-weight": (f"that is one for each number; {own}", n),
        "short-block-lost": ("the last, short block has none", n // block),
        "one-absmax": (f"that is one for the whole tensor; {own}", 1),
    }
    got = vector(got, len(truth), torch.float32, f"{what}: absmax", counts)
    if (got == truth.double()).all():
        return
    more = got - truth.double()
    if (more >= 0).all() and more.max() < 1e-4 and truth.min() > 0:
        raise Wrong(
            "guarded",
            f"{what}: absmax: it is up to {more.max():.0e} too large. It is the largest absolute value itself, in a "
            "small block, too; only a block of zeros needs a guard",
        )
    close(got, truth, f"{what}: absmax", rtol=0, atol=0, wrong=_absmax_slips(truth, weight, block))


def _absmax_slips(truth: Tensor, weight: Tensor, block: int) -> Hints:
    padding, asked = (0, -weight.numel() % block), "the largest absolute value is asked for"
    flat = F.pad(weight.reshape(-1).float(), padding).view(-1, block)
    return {
        "no-abs": (f"that is the largest value of a block; {asked}", flat.amax(1)),
        "sign-kept": ("its sign is kept; absmax is positive",
                      flat.gather(1, flat.abs().argmax(1, keepdim=True))[:, 0]),
        "absmin": (f"that is the smallest value of a block; {asked}", flat.amin(1)),
        "mean": (f"that is the mean absolute value of a block; {asked}", flat.abs().mean(1)),
        "mean-square": (f"that is the root mean square of a block; {asked}", flat.square().mean(1).sqrt()),
        "reciprocal": ("that is 1 / absmax", 1 / truth),
        "half-range": (f"that is half of a block's range, (max - min) / 2; {asked}", (flat.amax(1) - flat.amin(1)) / 2),
        "deviation": (f"that is the standard deviation of a block; {asked}", flat.std(1)),
        "sevenths": ("that is absmax / 7, as for integers", truth / 7),
        "one-absmax": ("that is absmax of the whole tensor; each block has its own",
                       flat.abs().max().expand(len(flat))),
        "columns": ("the blocks run along the wrong axis, down the columns; it is cut row after row",
                    rounded(weight.transpose(0, -1), NF4, block)[1]),
        "strided": (f"the blocks are strided: numbers far apart go together, and {block} neighbours make a block",
                    F.pad(weight.reshape(-1).float(), padding).view(block, -1).abs().amax(0)),
    }  # fmt: skip


def _pair(got, what: str):
    """What is returned, looked at."""
    if not isinstance(got, (tuple, list)) or len(got) != 2:
        raise Wrong("no-pair", f"{what}: quantize returns {show(got)}; a pair (codes, absmax) is asked for")
    codes, absmax = (tensor(part, f"{what}: {name}") for part, name in zip(got, ("codes", "absmax")))
    if codes.is_floating_point() and (not absmax.is_floating_point() or codes.numel() < absmax.numel()):
        raise Wrong("swapped", f"{what}: quantize returns (absmax, codes); (codes, absmax) is asked for")
    return codes, absmax
