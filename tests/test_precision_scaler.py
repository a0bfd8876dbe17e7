"""The loss scaler, step by step beside ``torch.amp.GradScaler``, which runs on a CPU, too."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minigpt.precision import LossScaler

BAD = {"inf": math.inf, "nan": math.nan, "fine": 1.0}


def weights() -> tuple[list[torch.Tensor], torch.optim.Optimizer]:
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(n, generator=generator).requires_grad_() for n in (3, 5)]
    return tensors, torch.optim.SGD([{"params": tensors[:1]}, {"params": tensors[1:]}], lr=0.1, momentum=0.9)


@settings(max_examples=30, deadline=None)
@given(
    steps=st.lists(st.sampled_from(["fine", "fine", "inf", "nan"]), max_size=12),
    scale=st.sampled_from([1.0, 3.0, 2.0**16, 2.0**120]),
    interval=st.integers(1, 4),
)
def test_it_is_torchs_step_by_step(steps, scale, interval):
    options = dict(growth=2.0, backoff=0.5, interval=interval)
    ours, theirs = LossScaler(scale, **options), torch.amp.GradScaler("cpu", scale, 2.0, 0.5, interval)
    (mine, my_optimizer), (yours, your_optimizer) = weights(), weights()
    for number, kind in enumerate(steps):
        for tensors, optimizer in ((mine, my_optimizer), (yours, your_optimizer)):
            optimizer.zero_grad()
            loss = sum((t * (number + 1)).sum() for t in tensors) / 7
            (ours.scaled(loss) if tensors is mine else theirs.scale(loss)).backward()
            tensors[number % 2].grad[1] *= BAD[kind]
        before = [t.detach().clone() for t in yours]
        theirs.step(your_optimizer)
        theirs.update()
        made = ours.step(my_optimizer)
        assert made == any(not torch.equal(a, b) for a, b in zip(before, yours))
        assert all(torch.equal(a, b) for a, b in zip(mine, yours))
        assert all(torch.equal(a.grad, b.grad) or not a.grad.isfinite().all() for a, b in zip(mine, yours))
        assert (ours.scale, ours.well) == (theirs.get_scale(), theirs._get_growth_tracker())
    assert ours.skipped == sum(kind != "fine" for kind in steps)


def test_float16_gradients_are_refused_as_torch_refuses_them():
    p = torch.ones(2, dtype=torch.float16, requires_grad=True)
    optimizer, theirs = torch.optim.SGD([p], lr=0.1), torch.amp.GradScaler("cpu")
    theirs.scale(p.sum()).backward()
    with pytest.raises(ValueError, match="FP16 gradients"):
        theirs.step(optimizer)
    with pytest.raises(ValueError, match="a gradient is float16; the weights that a scaler's"):
        LossScaler().step(optimizer)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(scale=0), "scale is 0; it must be above 0 and below inf"),
        (dict(growth=1), "growth is 1; it must be above 1"),
        (dict(backoff=1.5), "backoff is 1.5; it must be above 0 and below 1"),
        (dict(interval=0), "interval is 0; it must be an integer of at least 1"),
    ],
)
def test_what_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        LossScaler(**options)
