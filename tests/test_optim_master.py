"""MasterAdamW against torch's AdamW on a float32 copy, and its bytes against the table of precisions."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from minigpt.memory.plan import PRECISIONS
from minigpt.model import GPT, GPTConfig
from minigpt.optim import KahanAdamW, MasterAdamW, adamw
from minigpt.optim.master import MASTER_GRADIENTS
from minigpt.precision import autocast, weight_dtype


def parameters(seed: int = 0) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(shape, generator=generator).bfloat16()) for shape in ((8, 4), (5,))]


@pytest.mark.parametrize("gradients", MASTER_GRADIENTS.values())
def test_its_updates_are_those_of_adamw_on_the_master(gradients):
    ours = parameters()
    theirs = [nn.Parameter(p.detach().float()) for p in ours]
    options = dict(lr=1e-2, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1)
    optimizer, reference = MasterAdamW(ours, gradients=gradients, **options), torch.optim.AdamW(theirs, **options)
    for step in range(20):
        for p, q in zip(ours, theirs):
            q.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(step)).bfloat16().float()
            p.grad = q.grad.to(p.grad_dtype or p.dtype)
        optimizer.step()
        reference.step()
        for p, q in zip(ours, theirs):
            state, expected = optimizer.state[p], reference.state[q]
            torch.testing.assert_close(state["master"], q.detach())
            torch.testing.assert_close(state["exp_avg"], expected["exp_avg"])
            torch.testing.assert_close(state["exp_avg_sq"], expected["exp_avg_sq"])
            assert p.equal(state["master"].bfloat16())


@pytest.mark.parametrize("optimizer", [MasterAdamW, KahanAdamW, torch.optim.AdamW])
def test_a_closure_makes_the_gradients_and_its_loss_is_returned(optimizer):
    weight = nn.Parameter(torch.ones(3).bfloat16())
    steps = optimizer([weight], lr=0.5)

    def closure():
        steps.zero_grad()
        loss = weight.sum()
        loss.backward()
        return loss

    assert steps.step(closure).item() == 3
    assert (weight < 0.6).all(), "the gradients of the closure were not used"
    assert steps.step() is None


def test_without_a_master_small_updates_round_away():
    lost, kept = nn.Parameter(torch.ones(3).bfloat16()), nn.Parameter(torch.ones(3).bfloat16())
    optimizers = MasterAdamW([lost], lr=1e-4, master=False), MasterAdamW([kept], lr=1e-4)
    for _ in range(100):
        for p, optimizer in zip((lost, kept), optimizers):
            p.grad = torch.ones_like(p)
            optimizer.step()
    assert (lost == 1).all()  # 1e-4 is far under half of bfloat16's step below 1, 2**-8
    assert kept.float().tolist() == pytest.approx([1 - 100 * 1e-4] * 3, abs=2**-9)


def test_float32_gradients_sum_what_bfloat16_gradients_lose():
    def summed(gradients: str) -> float:
        p = nn.Parameter(torch.ones(1).bfloat16())
        MasterAdamW([p], gradients=gradients)
        for factor in [1.0] + [2**-10] * 64:
            (p * torch.tensor([factor]).bfloat16()).sum().backward()
        return p.grad.item()

    assert summed("32") == 1 + 64 * 2**-10
    assert summed("16") == 1


def bytes_of(tensors) -> int:
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())


@pytest.mark.parametrize("name", PRECISIONS)
def test_the_bytes_a_parameter_are_those_of_the_table(name):
    model = GPT(GPTConfig(n_layer=1, n_embd=16, n_head=2, context=16)).to(weight_dtype(name))
    params = list(model.parameters())
    optimizer = adamw(params, name)
    tokens = torch.zeros(1, 8, dtype=torch.long)
    for _ in range(2):  # micro-batches
        with autocast(name, "cpu"):
            loss = model(tokens, tokens)
        loss.backward()
    optimizer.step()
    n, row = sum(p.numel() for p in params), PRECISIONS[name]
    states = [optimizer.state[p] for p in params]
    keys = ("master", "exp_avg", "exp_avg_sq", "gradient")
    tensor = {key: bytes_of(s[key] for s in states if key in s) for key in keys}
    assert bytes_of(params) == row.weights * n
    assert bytes_of(p.grad for p in params) + tensor["gradient"] == row.gradients * n
    assert tensor["master"] == row.master * n
    assert tensor["exp_avg"] + tensor["exp_avg_sq"] == row.moments * n
    assert {key for s in states for key in s} <= {"step", *tensor}


def test_the_state_survives_saving_in_float32(tmp_path):
    ours = parameters()
    optimizer = MasterAdamW(ours, gradients="16+32")
    for p in ours:
        p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(1)).bfloat16()
    optimizer.step()
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    again = parameters()
    other = MasterAdamW(again, gradients="16+32")
    other.load_state_dict(torch.load(tmp_path / "optimizer.pt", weights_only=True))
    for p, q in zip(ours, again):
        assert optimizer.state[p].keys() == other.state[q].keys()
        for key, value in optimizer.state[p].items():
            torch.testing.assert_close(other.state[q][key], value, rtol=0, atol=0)


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(gradients="8"), "gradients is '8'; allowed: 16, 32, 16\\+32"),
        (dict(lr=-1), "lr is -1; it must be a number of at least 0"),
        (dict(weight_decay=-0.1), "weight_decay is -0.1"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        MasterAdamW(parameters(), **options)
    with pytest.raises(ValueError, match="precision is 'fp8'; allowed: fp32"):
        adamw(parameters(), "fp8")
