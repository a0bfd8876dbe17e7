"""Number formats: what they hold, how a number is rounded into them, and what a training run does about it.

    formats     sign, exponent and mantissa; range and spacing follow from their widths
    bits        one number to its bits and back
    rounding    tensors: to the nearest number, or up or down by chance
    scaler      loss scaling for float16, written out
    casts       which casts autocast makes, which of them backward keeps, and what it leaves in float32
    panel       a number's bits in a notebook, to toggle
    regimes     the dtypes of a training run, by the name of its precision

Left out: decimal formats, integers with a scale (``minigpt.nf4`` has one), arithmetic in the formats themselves.
"""

from minigpt.precision.bits import decode, encode, fields
from minigpt.precision.casts import Cast, casts, result_dtypes
from minigpt.precision.formats import FORMATS, Format, find_format
from minigpt.precision.regimes import autocast, check_precision, native_bf16, weight_dtype
from minigpt.precision.rounding import nearest, spacing, stochastic
from minigpt.precision.scaler import LossScaler

__all__ = [
    "FORMATS", "Cast", "Format", "LossScaler", "autocast", "casts", "check_precision", "decode", "encode", "fields",
    "find_format", "native_bf16", "nearest", "result_dtypes", "spacing", "stochastic", "weight_dtype",
]  # fmt: skip
