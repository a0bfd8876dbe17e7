"""Numbers in 8 bits: the maps against bitsandbytes, the codes against a search through the whole map."""

from __future__ import annotations

import logging
import math
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minigpt.optim.blockwise import dequantize, dynamic_map, linear_map, quantize

logging.getLogger("bitsandbytes").setLevel(logging.CRITICAL)  # it reports a kernel that only inference would use
with warnings.catch_warnings():  # torch's own, when bitsandbytes makes it load its compiler
    warnings.filterwarnings("ignore", "`torch.jit.script_method` is deprecated", DeprecationWarning)
    from bitsandbytes import functional as reference

MAPS = {"signed": dynamic_map(True), "unsigned": dynamic_map(False), "linear": linear_map(True)}


@pytest.mark.parametrize("signed", [True, False])
def test_the_maps_are_bitsandbytes_bit_for_bit(signed):
    assert dynamic_map(signed).equal(reference.create_dynamic_map(signed))
    assert linear_map(signed).equal(reference.create_linear_map(signed))


def test_the_maps_are_as_the_docstring_says():
    signed, unsigned = dynamic_map(True), dynamic_map(False)
    assert signed[127] == unsigned[0] == 0 and signed[-1] == unsigned[-1] == 1
    assert (signed[128].item(), unsigned[1].item()) == pytest.approx((5.5e-7, 3.25e-7))
    assert ((1 - signed[-3] / signed[-2]).item(), (1 - unsigned[-3] / unsigned[-2]).item()) == pytest.approx(
        (0.014, 0.007), abs=5e-4
    )
    assert (linear_map(True)[129].item(), linear_map(False)[1].item()) == pytest.approx((1 / 127, 1 / 255))
    assert linear_map(True)[126:130].tolist() == pytest.approx([-1 / 127, 0, 0, 1 / 127], abs=1e-8)


def brute_force(x: torch.Tensor, values: torch.Tensor, block: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(nearest distance, absmax): every value of the map tried on every number, in float64."""
    distances, scales = [], []
    for part in x.flatten().split(block):
        scale = part.abs().max()
        scaled = part * (1 / scale) if scale else part
        distances.append((scaled.double()[:, None] - values.double()).abs().min(1).values)
        scales.append(scale)
    return torch.cat(distances), torch.stack(scales)


@given(
    n=st.integers(1, 700),
    block=st.sampled_from([256, 64, 1, 7]),
    name=st.sampled_from(sorted(MAPS)),
    spread=st.sampled_from([0.0, 1.0, 4.0]),
    zeros=st.booleans(),
    seed=st.integers(0, 99),
)
@settings(max_examples=80, deadline=None)
def test_every_code_is_a_nearest_value_and_every_scale_is_the_blocks_own(n, block, name, spread, zeros, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, generator=generator) * 10 ** (spread * torch.randn(n, generator=generator))
    x = x.abs() if name == "unsigned" else x
    if zeros:
        x[: min(n, block)] = 0  # a whole block
    values = MAPS[name]
    codes, absmax = quantize(x, values, block)
    nearest, scales = brute_force(x, values, block)
    assert codes.shape == (n,) and codes.dtype == torch.uint8
    assert absmax.equal(scales) and len(absmax) == -(-n // block)
    each = absmax.repeat_interleave(block)[:n]
    scaled = torch.where(each > 0, x * (1 / each.clamp(min=1e-38)), 0)
    distance = (scaled.double() - values[codes.int()].double()).abs()
    torch.testing.assert_close(distance[each > 0], nearest[each > 0], rtol=0, atol=1e-7)  # midpoints are float32
    restored = dequantize(codes, absmax, values, block)
    assert restored.equal(values[codes.int()] * each)
    assert (restored[each == 0] == 0).all()


def test_values_of_the_map_come_back_as_they_are_and_a_tie_takes_the_lower_code():
    for values in (dynamic_map(True), dynamic_map(False)):
        codes, absmax = quantize(values, values)
        assert codes.tolist() == list(range(256)) and absmax.item() == 1
    values = torch.linspace(0, 1, 256)  # where midpoints are exact
    tie = (values[100] + values[101]) / 2
    assert quantize(torch.tensor([tie, 1.0]), values).codes[0] == 100


@pytest.mark.parametrize("shape", [(3, 5), (2, 3, 100), (4096,)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_shapes_stay_and_scales_are_float32(shape, dtype):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    codes, absmax = quantize(x, dynamic_map())
    back = dequantize(codes, absmax, dynamic_map())
    assert codes.shape == back.shape == shape and absmax.dtype == back.dtype == torch.float32
    assert ((back - x.float()).abs() <= 0.0101 * x.float().abs().max()).all()
    theirs, state = reference.quantize_blockwise(x, blocksize=256)
    assert absmax.equal(state.absmax)
    apart = (dynamic_map()[codes.int()] - dynamic_map()[theirs.int()]).abs()  # in units of absmax
    one_off = (codes.int() - theirs.int()).abs() == 1
    assert apart[~one_off].max() < 3e-5 and one_off.float().mean() < 0.01


def test_a_large_number_spoils_its_own_block_only():
    x = torch.full((512,), 0.001)
    x[0] = 1e6
    back = dequantize(*quantize(x, dynamic_map()), dynamic_map())
    assert (back[1:256] == 0).all()
    torch.testing.assert_close(back[256:], x[256:])


def test_the_dynamic_map_keeps_what_a_linear_one_makes_zero():
    x = torch.tensor([1.0, 1e-4, 1e-6])
    assert (dequantize(*quantize(x, linear_map(False)), linear_map(False))[1:] == 0).all()
    back = dequantize(*quantize(x, dynamic_map(False)), dynamic_map(False))
    torch.testing.assert_close(back, x, rtol=0.25, atol=0)


@pytest.mark.parametrize(
    ("x", "options", "message"),
    [
        (torch.tensor([1.0, math.nan]), {}, "x holds NaN or infinity; every number must be finite"),
        (torch.tensor([1.0, -math.inf]), dict(name="m"), "m holds NaN or infinity"),
        (torch.tensor([1]), {}, "x is torch.int64; it must be of a floating-point dtype"),
        (torch.ones(2), dict(block=0), "block is 0; it must be an integer of at least 1"),
    ],
)
def test_what_is_wrong_is_named(x, options, message):
    with pytest.raises(ValueError, match=message):
        quantize(x, dynamic_map(), **options)
