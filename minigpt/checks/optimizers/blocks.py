"""Judging numbers in 8 bits, in blocks that share a scale: the quantizer that a student wrote, and its way back.

    quantizes(quantize, state)        codes and absmax of a tensor like m, or like v
    edges(quantize)                   tiny numbers, and a block of zeros, as every state has before the first step
    restores(dequantize, state)       and back: code by code

The codes are those of ``four_bits.quantizing``, with a map of 256 values.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from minigpt.checks.closing import asked_first, knows
from minigpt.checks.comparing import close
from minigpt.checks.four_bits import quantizing
from minigpt.checks.four_bits.asking import follows_device, random_weight, vector
from minigpt.checks.naming import Hints
from minigpt.checks.optimizers.asking import ask, fields
from minigpt.checks.optimizers.maps import MAPS
from minigpt.checks.verdict import Wrong

knows(__name__)


class State(NamedTuple):
    """A random m ("signed") or v ("unsigned") over some powers of ten; ``turned``: a transpose."""

    kind: str
    shape: tuple[int, ...]
    block: int = 256
    seed: int = 0
    turned: bool = False

    @property
    def text(self) -> str:
        name = "m" if self.kind == "signed" else "v"
        return f"{name} of {tuple(self.shape)}{', a transpose' * self.turned}, blocks of {self.block}"

    def tensor(self) -> Tensor:
        shape = self.shape[::-1] if self.turned else self.shape
        m = random_weight(shape, seed=self.seed) * 10 ** random_weight(shape, seed=self.seed + 100, size=0.7)
        m = m.T if self.turned else m  # which lies in memory column after column
        return m if self.kind == "signed" else m.square()


def quantizes(quantize: Callable, state: State) -> None:
    """``quantize(x, values, block)`` -> (codes, absmax)."""
    quantizing.judge(quantize, state.tensor(), MAPS[state.kind], state.block, state.text)


def edges(quantize: Callable) -> None:
    """What common numbers do not show."""
    values = MAPS["unsigned"]
    quantizing.judge(quantize, random_weight((3, 256), size=1e-15).square(), values, 256, "v of about 1e-30")
    x, what = random_weight((2, 256), seed=5).square(), "v whose second block is zeros"
    x[1] = 0
    got = fields(ask(quantize, x, values, 256), ("codes", "absmax"), what)
    codes = vector(got["codes"], 512, torch.uint8, f"{what}: codes")
    absmax = vector(got["absmax"], 2, torch.float32, f"{what}: absmax")
    if (values[codes[256:]] * absmax[1]).any():
        raise Wrong("zeros", f"{what}: it does not decode to zeros")


def restores(dequantize: Callable, state: State) -> None:
    """``dequantize(codes, absmax, values, block)`` -> (n,) float32, on the device of the codes."""
    values, block = MAPS[state.kind], state.block
    inputs = *quantizing.rounded(state.tensor(), values, block), values, block
    what = f"{state.text}, restored"
    asked = asked_first([partial(ask, dequantize, *inputs), partial(follows_device, dequantize, *inputs)])
    got = vector(next(asked), len(inputs[0]), torch.float32, what)
    close(got, restored(*inputs), what, rtol=1e-6, atol=0, wrong=_restoring_mistakes(*inputs))
    next(asked)


def restored(codes: Tensor, absmax: Tensor, values: Tensor, block: int = 256) -> Tensor:
    """The numbers behind the codes, (n,) float32."""
    return values[codes.int()] * absmax.repeat_interleave(block)[: len(codes)]


def _restoring_mistakes(codes: Tensor, absmax: Tensor, values: Tensor, block: int) -> Hints:
    n, looked_up = len(codes), values[codes.int()]
    scale = absmax.repeat_interleave(block)[:n]
    return {
        "repeat": ("absmax is dealt out with repeat; the numbers of a block stand together: repeat_interleave",
                   looked_up * absmax.repeat(block)[:n]),
        "no-absmax": ("absmax is missing: these are the values of the map", looked_up),
        "divided": ("the values are divided by absmax; they are to be multiplied", looked_up / scale),
        "codes-multiplied": ("the codes themselves are multiplied; look them up in the map", codes * scale),
        "one-absmax": ("one absmax is used for all blocks", looked_up * absmax[0]),
        "blocks-of-256": ("blocks of 256 are taken, whatever is asked for",
                          looked_up * absmax.repeat_interleave(256)[:n] if 256 * len(absmax) >= n else looked_up),
        "integer-steps": ("the codes are read as equal steps, as of integers", (codes.float() - 127) / 127 * scale),
    }  # fmt: skip
