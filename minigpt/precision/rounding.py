"""Rounding a tensor into a format: to the nearest number, or up or down by chance.

    u = spacing at x            x / u = whole + rest, 0 <= rest < 1
    nearest                     up if rest > 1/2; if rest = 1/2, to the even one
    stochastic                  up with probability rest, so that the mean of many roundings is x

Everything runs in float64, where x / u is exact, for u is a power of two. So ``nearest`` equals torch's casts bit by
bit, and tf32, for which torch has no dtype, is rounded by the same lines.

Sources: IEEE 754-2019, round to nearest, ties to even. Stochastic rounding in training: Gupta et al. 2015, arXiv
1502.02551; for bf16 weights, Zamirai et al. 2020, arXiv 2010.06192.

Left out: rounding in place, and the fast way for bf16 (add 16 random bits to a float32 and drop the last 16).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from minigpt.precision.formats import Format, find_format


def spacing(x: Tensor, format: str) -> Tensor:
    """The distance between neighbours of the format where each x lies; float64, of x's shape.

    Half of it is the largest update that can vanish. Raises ValueError for an unknown format.
    """
    form = find_format(format)
    exponent = (torch.frexp(x.double()).exponent - 1).clamp(min=1 - form.bias)
    exponent = exponent.masked_fill(x == 0, 1 - form.bias)
    return torch.ldexp(torch.ones_like(x, dtype=torch.float64), exponent - form.mantissa)


def nearest(x: Tensor, format: str) -> Tensor:
    """x rounded to the nearest numbers of the format, in x's own dtype. Raises ValueError for an unknown format."""
    u = spacing(x, format)
    return _within(torch.round(x.double() / u) * u, find_format(format), x)


def stochastic(x: Tensor, format: str, generator: torch.Generator | None = None) -> Tensor:
    """x rounded to a neighbour of the format, up with the probability that makes the mean x; in x's own dtype.

    A number of the format stays what it is. Raises ValueError for an unknown format.
    """
    u = spacing(x, format)
    whole = torch.floor(x.double() / u)
    rest = x.double() / u - whole
    chance = torch.rand(x.shape, dtype=torch.float64, device=x.device, generator=generator)
    return _within((whole + (chance < rest)) * u, find_format(format), x)


def _within(rounded: Tensor, form: Format, x: Tensor) -> Tensor:
    """What is too large becomes infinity, or the largest number of a format that has none; NaN stays NaN."""
    rounded = torch.where(x.isfinite(), rounded, x.double())
    over = math.inf if form.infinity else form.largest
    rounded = torch.where(rounded.abs() > form.largest, torch.sign(rounded) * over, rounded)
    return torch.copysign(rounded, x.double()).to(x.dtype)
