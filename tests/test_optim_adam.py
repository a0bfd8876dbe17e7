"""adam_step against torch.optim.AdamW, step by step."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from minigpt.optim import adam_step

FAR = dict(float32=1e-5, float64=1e-12)
OPTIONS = st.fixed_dictionaries(  # no floats: minigpt.train takes subnormal numbers as 0, which Hypothesis refuses
    dict(
        lr=st.sampled_from([1e-5, 1e-3, 0.5]),
        betas=st.sampled_from([(0.9, 0.999), (0.0, 0.0), (0.99, 0.9999), (0.5, 0.3)]),
        eps=st.sampled_from([1e-8, 1e-2]),
        weight_decay=st.sampled_from([0.0, 0.01, 0.5]),
    )
)


@pytest.mark.parametrize("dtype", FAR)
@given(options=OPTIONS)
@settings(max_examples=25, deadline=None)
def test_steps_are_those_of_torch(dtype, options):
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(4, 3, generator=generator).to(getattr(torch, dtype))
    p, m, v = nn.Parameter(weight.clone()), torch.zeros_like(weight), torch.zeros_like(weight)
    reference = torch.optim.AdamW([p], **options)
    for t in range(1, 13):
        p.grad = torch.randn(4, 3, generator=generator).to(weight) * 10 ** (t % 3 - 1)
        kept = weight, m, v
        before = [tensor.clone() for tensor in kept]
        weight, m, v = adam_step(weight, p.grad, m, v, t, **options)
        assert all(a.equal(b) for a, b in zip(kept, before)), "adam_step changes what it is given"
        reference.step()
        for ours, theirs in zip(
            (weight, m, v), (p.detach(), *(reference.state[p][k] for k in ("exp_avg", "exp_avg_sq")))
        ):
            torch.testing.assert_close(ours, theirs, rtol=FAR[dtype], atol=FAR[dtype])


def test_the_first_step_moves_each_element_by_lr_whatever_its_gradient():
    grad = torch.tensor([1e-3, -1.0, 1e3])
    step = adam_step(torch.zeros(3), grad, torch.zeros(3), torch.zeros(3), 1, lr=0.01)
    torch.testing.assert_close(step.weight, torch.tensor([-0.01, 0.01, -0.01]))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(t=0), "t is 0; it must be an integer of at least 1"),
        (dict(m=torch.zeros(2)), r"m has shape \(2,\); it must be the weight's, \(3,\)"),
        (dict(lr=-1), "lr is -1; it must be a number of at least 0"),
        (dict(lr=float("nan")), "lr is nan"),
        (dict(eps="small"), "eps is 'small'"),
        (dict(betas=(0.9, 1)), r"betas is \(0.9, 1\); it must be two numbers of at least 0 and below 1"),
        (dict(betas=0.9), "betas is 0.9; it must be two numbers"),
    ],
)
def test_what_is_wrong_is_named(changes, message):
    right = dict(weight=torch.zeros(3), grad=torch.ones(3), m=torch.zeros(3), v=torch.zeros(3), t=1)
    with pytest.raises(ValueError, match=message):
        adam_step(**{**right, **changes})
