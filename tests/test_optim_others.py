"""Lion and Adafactor against the libraries that have them; and any optimizer run in backward against itself."""

from __future__ import annotations

import logging
import warnings

import pytest
import torch
from torch import nn

from minigpt.memory.measured.meter import MemoryMeter
from minigpt.model import GPT, GPTConfig
from minigpt.optim import (
    Adafactor,
    AdamW8bit,
    GaLoreAdamW,
    InBackward,
    KahanAdamW,
    Lion,
    MasterAdamW,
    galore_groups,
)

logging.getLogger("bitsandbytes").setLevel(logging.CRITICAL)  # it reports a kernel that only inference would use
with warnings.catch_warnings():  # torch's own, when bitsandbytes makes it load its compiler
    warnings.filterwarnings("ignore", "`torch.jit.script_method` is deprecated", DeprecationWarning)
    import bitsandbytes
    from transformers.optimization import Adafactor as TheirAdafactor

SHAPES = [(5, 7), (7, 5), (6,), (2, 3, 4)]


def same(ours, theirs, shape, dtype, ours_options, theirs_options, far) -> tuple[dict, dict]:
    """Ten steps of both from one start; their states."""
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(shape, generator=generator).to(dtype)
    p, q = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    one, other = ours([p], **ours_options), theirs([q], **theirs_options)
    for _ in range(10):
        p.grad = torch.randn(shape, generator=generator).to(dtype)
        q.grad = p.grad.clone()
        one.step()
        other.step()
    torch.testing.assert_close(p, q, rtol=far, atol=far)
    return one.state[p], other.state[q]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_adafactor_is_transformers(shape, decay, dtype):
    options = dict(lr=0.01, weight_decay=decay)
    theirs = dict(options, scale_parameter=False, relative_step=False)
    far = 1e-6 if dtype == torch.float32 else 2**-8
    mine, other = same(Adafactor, TheirAdafactor, shape, dtype, options, theirs, far)
    names = dict(rows="exp_avg_sq_row", columns="exp_avg_sq_col") if len(shape) > 1 else dict(v="exp_avg_sq")
    for name, theirs_name in names.items():
        torch.testing.assert_close(mine[name], other[theirs_name])
        assert mine[name].shape == other[theirs_name].shape
    assert set(mine) == {"step", *names}


def test_adafactor_bounds_the_root_mean_square_of_an_update():
    p = nn.Parameter(torch.zeros(4, 4))
    optimizer = Adafactor([p], lr=1.0)
    for step in range(30):
        before = p.detach().clone()
        p.grad = torch.full((4, 4), 1e-3) if step < 29 else torch.eye(4) * 1e3
        optimizer.step()
        assert (p - before).square().mean().sqrt() < 1.0001


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_lion_is_bitsandbytes(shape, decay):
    options = dict(lr=0.01, betas=(0.8, 0.95), weight_decay=decay)
    mine, other = same(Lion, bitsandbytes.optim.Lion32bit, shape, torch.float32, options, options, 1e-6)
    torch.testing.assert_close(mine["m"], other["state1"])


def nano() -> GPT:
    torch.manual_seed(0)
    return GPT(GPTConfig(n_layer=2, n_embd=64, n_head=2, context=16))


def galore(parameters: list[nn.Parameter], matrices: set[int]) -> GaLoreAdamW:
    groups = [
        dict(params=[p], rank=4, update_proj_gap=2) if id(p) in matrices else dict(params=[p]) for p in parameters
    ]
    return GaLoreAdamW(groups)


@pytest.mark.parametrize("kind", ["adamw", "adamw8bit", "galore", "lion", "adafactor", "master", "kahan"])
def test_in_backward_gives_the_same_weights_and_holds_no_two_gradients_for_long(kind):
    models = nano(), nano()
    if kind in ("master", "kahan"):
        models = models[0].bfloat16(), models[1].bfloat16()
    makes = dict(adamw=torch.optim.AdamW, adamw8bit=AdamW8bit, lion=Lion, adafactor=Adafactor,
                 master=MasterAdamW, kahan=KahanAdamW)  # fmt: skip
    peaks = []
    for model, apart in zip(models, (False, True)):
        matrices = {id(p) for p in galore_groups(model, 4)[0]["params"]}
        make = makes.get(kind) or (lambda ps, matrices=matrices: galore(ps, matrices))
        optimizer = InBackward(model.parameters(), make) if apart else make(list(model.parameters()))
        generator = torch.Generator().manual_seed(1)
        if apart:
            optimizer.attach()
        for _ in range(4):
            tokens = torch.randint(0, 256, (2, 16), generator=generator)
            with MemoryMeter(model, optimizer) as meter:
                model(tokens, tokens).backward()
                optimizer.step()
                optimizer.zero_grad()
        peaks.append(meter.result().ledger.gradients)
        if apart:
            assert all(p.grad is None for p in model.parameters())
            optimizer.detach()
            model(tokens, tokens).backward()
            assert all(p.grad is not None for p in model.parameters()), "a hook was left"
    for a, b in zip(*(model.parameters() for model in models)):
        assert a.equal(b)
    whole = sum(p.numel() * p.element_size() for p in models[0].parameters())
    assert peaks[0] == whole and peaks[1] < whole / 2


def test_in_backward_leaves_frozen_parameters_alone_and_shows_all_groups():
    model = nano()
    model.norm.weight.requires_grad_(False)
    optimizer = InBackward(model.parameters(), lambda ps: Lion(ps, lr=0.5))
    assert model.norm.weight not in optimizer.optimizers
    assert [group["lr"] for group in optimizer.param_groups] == [0.5] * len(optimizer.optimizers)


@pytest.mark.parametrize("make", [Adafactor, Lion, KahanAdamW, AdamW8bit, GaLoreAdamW, MasterAdamW])
def test_bad_options_are_named_by_every_optimizer_and_of_every_group(make):
    p = [nn.Parameter(torch.ones(2))]
    with pytest.raises(ValueError, match="lr is -1; it must be a number of at least 0"):
        make(p, lr=-1)
    with pytest.raises(ValueError, match="lr is inf"):
        make([dict(params=p, lr=float("inf"))])
    if make is not Adafactor:
        with pytest.raises(ValueError, match="betas is .* two numbers of at least 0 and below 1"):
            make(p, betas=(0.9, 2))
