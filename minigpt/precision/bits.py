"""One number to its bits and back.

A format's positive numbers, in the order of their size, are numbered by their bits. So to encode is to count. With k
the exponent of x and u the distance between two neighbours there, |x| / u is a number of steps, and

    pattern = (k + bias - 1) * 2^M + round(|x| / u)        k = max(floor(log2 |x|), 1 - bias),  u = 2^(k - M)

and a round-up past the last mantissa arrives at the next exponent by itself. ``round`` takes the nearest whole number,
and the even one of two: in Python and in IEEE 754 alike.

Left out: NaN's payload. Every NaN is encoded as the same one, positive.
"""

from __future__ import annotations

import math

from minigpt.precision.formats import Format, find_format
from minigpt.values import check_counts, is_number


def encode(value: float, format: str) -> int:
    """The bits of the number nearest to ``value``, read as a whole number; a tie goes to the even pattern.

    What is too large becomes infinity; in e4m3, which has none, the largest number, as in torch 2.13's casts.
    Raises ValueError for an unknown format and for a value that is no number.
    """
    if not is_number(value):
        raise ValueError(f"value is {value!r}; it must be a number")
    form, value = find_format(format), float(value)
    sign = int(math.copysign(1, value) < 0) << (form.bits - 1)
    if math.isnan(value):
        return form.last + 1 + (form.infinity << (form.mantissa - 1))
    if math.isinf(value):
        return sign + form.last + form.infinity
    k = max(math.frexp(value)[1] - 1, 1 - form.bias) if value else 1 - form.bias
    pattern = ((k + form.bias - 1) << form.mantissa) + round(math.ldexp(abs(value), form.mantissa - k))
    return sign + min(pattern, form.last + form.infinity)


def decode(pattern: int, format: str) -> float:
    """The number that the bits stand for. Raises ValueError for an unknown format and for bits that it has not."""
    form = find_format(format)
    check_counts(least=0, most=2**form.bits - 1, pattern=pattern)
    size = pattern & (2 ** (form.bits - 1) - 1)
    sign = -1.0 if pattern > size else 1.0
    if size > form.last:
        return sign * math.inf if form.infinity and size == form.last + 1 else math.nan
    exponent, mantissa = size >> form.mantissa, size & (2**form.mantissa - 1)
    steps = mantissa + (2**form.mantissa if exponent else 0)
    return sign * math.ldexp(steps, max(exponent, 1) - form.bias - form.mantissa)


def fields(pattern: int, format: str) -> tuple[str, str, str]:
    """Sign, exponent and mantissa of a pattern, each as text of zeros and ones. Raises ValueError as ``decode``."""
    form: Format = find_format(format)
    check_counts(least=0, most=2**form.bits - 1, pattern=pattern)
    text = f"{pattern:0{form.bits}b}"
    return text[0], text[1 : 1 + form.exponent], text[1 + form.exponent :]
