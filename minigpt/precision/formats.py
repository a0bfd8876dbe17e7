"""Six number formats as three widths, and everything else about them derived from the widths.

With E exponent and M mantissa bits, and with the exponent field e and the mantissa field f read as whole numbers, a
number is

    normal,    e > 0:   (-1)^sign * 2^(e - bias) * (1 + f / 2^M)          bias = 2^(E - 1) - 1
    subnormal, e = 0:   (-1)^sign * 2^(1 - bias) * f / 2^M

So between two powers of two lie 2^M numbers, equally far apart. The largest e is kept for infinity and NaN; e4m3 has no
infinity and keeps only the very last pattern, for NaN.

Sources: IEEE 754-2019 (fp32, fp16); Micikevicius et al. 2022, arXiv 2209.05433 (fp8); tf32 and bf16 are fp32 with
fewer mantissa bits. torch has no dtype for tf32, which is a way to multiply float32 numbers: its widths are those that
NVIDIA's CUDA Math API documents for ``__nv_tf32``, 8 and "10 or more".

Left out: the fp8 variants without a negative zero ("fnuz"), formats with a shared scale (MX, NVFP4). No torch here.
"""

from __future__ import annotations

from dataclasses import dataclass

from minigpt.values import check_choice


@dataclass(frozen=True)
class Format:
    """A sign, ``exponent`` bits and ``mantissa`` bits. ``dtype`` is torch's name for it, "" where it has none."""

    exponent: int
    mantissa: int
    dtype: str
    infinity: bool = True

    @property
    def bits(self) -> int:
        """Bits of one number."""
        return 1 + self.exponent + self.mantissa

    @property
    def bytes(self) -> int:
        """Bytes that a number takes in memory: tf32 lies there as the float32 that it comes from."""
        return self.bits // 8 if self.dtype else 4

    @property
    def bias(self) -> int:
        """What is subtracted from the exponent field."""
        return 2 ** (self.exponent - 1) - 1

    @property
    def epsilon(self) -> float:
        """The distance from 1 to the next larger number."""
        return 2.0**-self.mantissa

    @property
    def smallest_normal(self) -> float:
        """The smallest positive number with all of its mantissa bits."""
        return 2.0 ** (1 - self.bias)

    @property
    def smallest_subnormal(self) -> float:
        """The smallest positive number at all."""
        return self.smallest_normal * self.epsilon

    @property
    def last(self) -> int:
        """The bits of the largest finite number, read as a whole number."""
        return ((2**self.exponent - 1) << self.mantissa) - 1 if self.infinity else 2 ** (self.bits - 1) - 2

    @property
    def largest(self) -> float:
        """The largest finite number."""
        if self.infinity:
            return (2 - self.epsilon) * 2.0**self.bias
        return (2 - 2 * self.epsilon) * 2.0 ** (self.bias + 1)


FORMATS = {
    "fp32": Format(8, 23, "float32"),
    "tf32": Format(8, 10, ""),
    "bf16": Format(8, 7, "bfloat16"),
    "fp16": Format(5, 10, "float16"),
    "e5m2": Format(5, 2, "float8_e5m2"),
    "e4m3": Format(4, 3, "float8_e4m3fn", infinity=False),
}


def find_format(name: str) -> Format:
    """The format of that name. Raises ValueError for another."""
    check_choice(FORMATS, format=name)
    return FORMATS[name]
