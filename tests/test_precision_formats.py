"""Formats, bits and rounding, held to torch: ``finfo``, and every cast bit by bit."""

from __future__ import annotations

import math
import struct

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from minigpt.precision import FORMATS, decode, encode, fields, nearest, spacing, stochastic

OF_TORCH = {name: getattr(torch, form.dtype) for name, form in FORMATS.items() if form.dtype}
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
FLOATS = st.floats(width=32)
OVERFLOWS = [448.0, 464.0, 464.1, 1e9, 61439.0, 61440.0, 65519.0, 65520.0, 3.4e38, math.inf, -math.inf]


@pytest.fixture(autouse=True)
def subnormals():
    """``minigpt.train`` tells the processor to flush them."""
    torch.set_flush_denormal(False)
    yield
    torch.set_flush_denormal(True)


def pattern_of(number: torch.Tensor) -> int:
    size = number.dtype.itemsize
    return int(number.view(INTEGERS[size])) & (2 ** (8 * size) - 1)


def same(a: float, b: float) -> bool:
    return math.isnan(a) and math.isnan(b) or (a == b and math.copysign(1, a) == math.copysign(1, b))


@pytest.mark.parametrize("name", OF_TORCH)
def test_range_and_spacing_follow_from_the_widths(name):
    form, theirs = FORMATS[name], torch.finfo(OF_TORCH[name])
    assert (form.bits, form.bytes) == (theirs.bits, theirs.bits // 8)
    assert (form.largest, form.epsilon, form.smallest_normal) == (theirs.max, theirs.eps, theirs.smallest_normal)
    zero = torch.zeros((), dtype=OF_TORCH[name])
    first = (zero.view(INTEGERS[form.bytes]) + 1).view(OF_TORCH[name])  # finfo has no smallest_subnormal
    assert form.smallest_subnormal == first.item()


def test_tf32_is_float32_with_float16s_mantissa():
    """torch has no dtype to ask: what it has is bf16's exponent and fp16's mantissa, and 4 bytes in memory."""
    form, wide, half = FORMATS["tf32"], FORMATS["bf16"], FORMATS["fp16"]
    assert (form.exponent, form.mantissa, form.bits, form.bytes) == (wide.exponent, half.mantissa, 19, 4)
    assert form.smallest_normal == torch.finfo(torch.float32).smallest_normal
    assert form.epsilon == torch.finfo(torch.float16).eps


@pytest.mark.parametrize("name", ["bf16", "fp16", "e5m2", "e4m3"])
def test_every_pattern_is_the_number_that_torch_reads(name):
    form = FORMATS[name]
    whole = torch.arange(2**form.bits, dtype=torch.int64).to(INTEGERS[form.bytes])
    theirs = whole.view(OF_TORCH[name]).double().tolist()
    for pattern, number in enumerate(theirs):
        assert same(decode(pattern, name), number)
        if not math.isnan(number):
            assert encode(number, name) == pattern


@pytest.mark.parametrize("name", OF_TORCH)
@given(value=FLOATS)
@example(value=65520.0)
@example(value=2.0**-25)
@example(value=-(2.0**-25) * 1.5)
@example(value=1 + 2.0**-8)
@example(value=1 + 3 * 2.0**-8)
def test_rounding_is_torchs_cast_bit_by_bit(name, value):
    torch.set_flush_denormal(False)
    theirs = torch.tensor(value).to(OF_TORCH[name])
    ours = nearest(torch.tensor(value), name)
    assert same(ours.item(), theirs.float().item())
    if not math.isnan(value):
        assert encode(value, name) == pattern_of(theirs)


@pytest.mark.parametrize("name", OF_TORCH)
@pytest.mark.parametrize("value", OVERFLOWS)
def test_what_is_too_large_is_what_torch_makes_of_it(name, value):
    theirs = torch.tensor(value).to(OF_TORCH[name])
    assert encode(value, name) == pattern_of(theirs)
    assert nearest(torch.tensor(value), name).item() == theirs.float().item() == decode(encode(value, name), name)


@given(value=FLOATS)
@example(value=1 + 2.0**-11)
@example(value=1 + 3 * 2.0**-11)
@example(value=2.0**-140)
def test_tf32_is_float32_rounded_at_its_thirteenth_last_bit(value):
    """The oracle is integer arithmetic on float32's own bits: add half a step less the tie, drop 13 bits."""
    torch.set_flush_denormal(False)
    word = struct.unpack("<I", struct.pack("<f", value))[0]
    rounded = (word + 0xFFF + (word >> 13 & 1)) & ~0x1FFF & 0xFFFFFFFF
    expected = struct.unpack("<f", struct.pack("<I", rounded))[0] if math.isfinite(value) else value
    assert same(nearest(torch.tensor(value), "tf32").item(), expected)
    assert same(decode(encode(value, "tf32"), "tf32"), abs(value) if math.isnan(value) else expected)


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_float64_goes_in_whole(value):
    """Not by way of float32, which would round twice."""
    between = value * (1 + 2.0**-40)
    assert decode(encode(between, "fp32"), "fp32") == torch.tensor(between, dtype=torch.float64).float().item()


def test_fields_spell_the_pattern():
    assert fields(encode(1.0, "bf16"), "bf16") == ("0", "01111111", "0000000")
    assert fields(encode(-0.15625, "fp16"), "fp16") == ("1", "01100", "0100000000")


@pytest.mark.parametrize("name", OF_TORCH)
def test_spacing_is_the_distance_to_the_next_number(name):
    if name == "fp32":
        x = torch.tensor([1.0, 0.05, 1e-40, 3e38])
        assert torch.equal(spacing(x, name), (torch.nextafter(x, torch.tensor(math.inf)).double() - x.double()))
        return
    form = FORMATS[name]
    patterns = range(0, form.last, max(1, form.last // 500))
    numbers = torch.tensor([decode(p, name) for p in patterns], dtype=torch.float64)
    above = torch.tensor([decode(p + 1, name) for p in patterns], dtype=torch.float64)
    assert torch.equal(spacing(numbers, name), above - numbers)


# ------------------------------------------------------------ stochastic rounding


@pytest.mark.parametrize("name", FORMATS)
def test_a_number_of_the_format_stays(name):
    form = FORMATS[name]
    numbers = [1.0, -form.epsilon, form.largest, form.smallest_subnormal, 0.0, -0.0]
    x = torch.tensor(numbers, dtype=torch.float64)
    assert torch.equal(stochastic(x, name), x) and torch.equal(torch.signbit(stochastic(x, name)), torch.signbit(x))


@given(value=st.floats(2.0**-99, 2.0**99, width=32), draw=st.floats(0, 1, exclude_max=True))
@example(value=1 + 2.0**-9, draw=0.25)
@example(value=1 + 2.0**-9, draw=math.nextafter(0.25, 0))
def test_the_probability_is_the_rest_exactly(value, draw):
    """Up exactly for the draws below (x - lower) / u: the draw is put in torch.rand's place."""
    x = torch.tensor(value)
    u = spacing(x, "bf16").item()
    lower = math.floor(value / u) * u
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "rand", lambda *a, **k: torch.tensor(draw, dtype=torch.float64))
        assert stochastic(x.double(), "bf16").item() == (lower + u if draw < (value - lower) / u else lower)


@pytest.mark.parametrize("name", ["bf16", "fp16", "tf32", "e4m3"])
def test_the_mean_of_many_roundings_is_the_number(name):
    many = 200_000
    generator = torch.Generator().manual_seed(0)
    for value in (0.05, -1.0 - FORMATS[name].epsilon / 5, 0.3 * FORMATS[name].smallest_subnormal):
        rounded = stochastic(torch.full((many,), value, dtype=torch.float64), name, generator)
        u = spacing(torch.tensor(value, dtype=torch.float64), name).item()
        rest = value / u - math.floor(value / u)
        sigma = u * math.sqrt(rest * (1 - rest) / many)
        assert abs(rounded.mean().item() - value) < 4 * sigma + 1e-12 * u
        assert abs(nearest(torch.tensor(value), name).item() - value) > 10 * sigma  # nearest is off, always one way
    again = torch.Generator().manual_seed(0)
    assert torch.equal(stochastic(torch.full((9,), 0.05), name, again),
                       stochastic(torch.full((9,), 0.05), name, again.manual_seed(0)))  # fmt: skip


# ------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: encode(1.0, "fp8"), "format is 'fp8'; allowed: fp32, tf32, bf16"),
        (lambda: encode("1", "bf16"), "value is '1'; it must be a number"),
        (lambda: decode(2**16, "bf16"), "pattern is 65536; it must be at most 65,535"),
        (lambda: fields(-1, "bf16"), "pattern is -1; it must be an integer of at least 0"),
        (lambda: nearest(torch.ones(1), "int8"), "format is 'int8'"),
    ],
)
def test_what_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
