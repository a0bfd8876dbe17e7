"""What a mode makes out of place is not counted: backward's peak is the one of torch's profiler without a mode."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from minigpt.memory import MemoryMeter
from minigpt.memory.measured.meter import GRADIENTS, TEMPORARY
from tests.profiled import profiled_peak

ROWS, WIDTH = 64, 64  # 16 KiB in float32
INDEX = torch.arange(ROWS).flip(0)
WIDE = INDEX[:, None].expand(ROWS, WIDTH).contiguous()
MASK = torch.arange(ROWS * WIDTH).view(ROWS, WIDTH) % 3 == 0
BELOW, ABOVE = torch.full((WIDTH,), -1.0), torch.full((WIDTH,), 1.0)

PICKS = {
    "index": lambda x: x[INDEX],
    "gather": lambda x: x.gather(0, WIDE),
    "take_along_dim": lambda x: x.take_along_dim(WIDE, 0),
    "index_select": lambda x: x.index_select(0, INDEX),
    "repeat_interleave": lambda x: x.repeat_interleave(2, dim=0),
    "sort": lambda x: x.sort(dim=0).values,
    "topk": lambda x: x.topk(60, dim=0).values,
    "max": lambda x: x.max(dim=0).values,
    "median": lambda x: x.median(dim=0).values,
    "cummax": lambda x: x.cummax(dim=0).values,
    "take": lambda x: x.take(INDEX),
    "masked_select": lambda x: x.masked_select(MASK),
    "clamp": lambda x: x.clamp(BELOW, ABOVE),
    "cumsum": lambda x: x.cumsum(0),
    "masked_fill": lambda x: x.masked_fill(MASK, 0.0),
    "index_copy": lambda x: x.index_copy(0, INDEX, torch.ones(ROWS, WIDTH)),
    "scatter": lambda x: x.scatter(0, WIDE, 1.0),
    "a sum of two": lambda x: x.exp() + x.sin(),
    "a sum of three": lambda x: x.exp() + x.sin() + x.cos(),
    "a sum, first transposed": lambda x: x.exp() + x.T.contiguous().exp().T,
    "a sum, first expanded": lambda x: x.sin() + x.sum(),
    "a sum, one is held by the caller": lambda x: x.exp() + x,
    "parts of one": lambda x: sum(part.exp() for part in x.split(16)),
}


@pytest.mark.parametrize("pick", PICKS.values(), ids=list(PICKS))
def test_a_backward(pick):
    x = torch.randn(ROWS, WIDTH, requires_grad=True)
    with MemoryMeter(inputs=(x,)) as meter:
        y = pick(x)
        gradient = torch.ones_like(y)

        def backward():
            y.backward(gradient, retain_graph=True)  # so that nothing from before is freed
            x.grad = None

        before = meter.peak = meter.live
        backward()
    assert abs(meter.peak - before - profiled_peak(backward)) <= 1024


@pytest.mark.parametrize("masked", [True, False])
def test_attention_with_dropout_which_a_cpu_computes_in_the_plain_form(masked):
    q = torch.randn(2, 4, 64, 16, requires_grad=True)
    mask = torch.zeros(2, 1, 64, 64) if masked else None

    def forward():
        functional.scaled_dot_product_attention(q, q, q, attn_mask=mask, dropout_p=0.1)

    with MemoryMeter(inputs=(q,) if mask is None else (q, mask)) as meter:
        before = meter.live
        forward()
    assert meter.live == before
    assert abs(meter.peak - before - profiled_peak(forward)) <= 1024


def test_a_bias_of_transposed_inputs():
    layer, x = torch.nn.Linear(64, 512), torch.randn(64, 8, 64).transpose(0, 1)
    with MemoryMeter(layer, inputs=(x,)) as meter:
        before = meter.live
        layer(x)
    assert abs(meter.peak - before - profiled_peak(lambda: layer(x))) <= 1024


def test_a_sum_of_the_reader_is_counted():
    """In Python the first of two terms is held until the sum is there."""
    x = torch.ones(1000)
    with MemoryMeter(inputs=(x,)) as meter:
        before = meter.live
        (x * 2) + (x * 3)
    assert meter.peak - before == 12_000


def test_a_write_of_the_reader_inside_backward_is_counted():
    class Write(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            return torch.zeros(ROWS, WIDTH).index_put((INDEX,), gradient[0])

    x = torch.ones(ROWS, WIDTH, requires_grad=True)
    y = Write.apply(x)
    gradient = torch.ones_like(y)
    with MemoryMeter(inputs=(x, y, gradient)) as meter:
        before = meter.live
        y.backward(gradient)
    assert meter.peak - before == 2 * 4 * ROWS * WIDTH


def test_a_forward_without_backward_leaves_nothing():
    layer, x = torch.nn.Linear(64, 64), torch.randn(1000, 64)
    with MemoryMeter(layer, inputs=(x,)) as meter:
        before = meter.live
        for _ in range(3):
            torch.tanh(layer(x)).sum()
    assert meter.live == before


def test_a_sum_in_place_is_a_gradient_from_the_first_summand_on():
    weight = torch.nn.Parameter(torch.ones(1000))
    with MemoryMeter(torch.nn.ParameterList([weight])) as meter:
        loss = (weight * 2).sum() + (weight * 3).sum()
        meter.mark("backward")
        loss.backward()
    born = [bucket for phase, bucket, change in meter.result().events if (phase, change) == ("backward", 4000)]
    assert born == [GRADIENTS, TEMPORARY], "the second is added to the first, which becomes .grad"
