"""AdamW8bit against bitsandbytes' on the CPU: bytes, scales, codes; and against AdamW in float32: the loss."""

from __future__ import annotations

import logging
import math
import warnings
from functools import partial

import pytest
import torch
from torch import nn

from minigpt.data import pretraining_text, random_windows
from minigpt.memory import MemoryMeter
from minigpt.model import GPT, GPTConfig
from minigpt.optim import AdamW8bit, adam_step
from minigpt.optim.blockwise import dequantize, dynamic_map, quantize
from minigpt.train import TrainPlan, train

logging.getLogger("bitsandbytes").setLevel(logging.CRITICAL)  # it reports a kernel that only inference would use
with warnings.catch_warnings():  # torch's own, when bitsandbytes makes it load its compiler
    warnings.filterwarnings("ignore", "`torch.jit.script_method` is deprecated", DeprecationWarning)
    import bitsandbytes

SIZES = (1, 256, 4095, 4096, 4097, 5000, 65_536)
OPTIONS = dict(lr=1e-2, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.1)


def gradient(n: int, step: int) -> torch.Tensor:
    """Normal numbers whose size differs by some decades from element to element."""
    generator = torch.Generator().manual_seed(step)
    return torch.randn(n, generator=generator) * 10 ** torch.linspace(-3, 1, n)


def stepped(make, n: int, steps: int, dtype: torch.dtype = torch.float32):
    """(parameter, optimizer) after some steps."""
    p = nn.Parameter(torch.linspace(-1, 1, n).to(dtype))
    optimizer = make([p], **OPTIONS)
    for step in range(steps):
        p.grad = gradient(n, step).to(dtype)
        optimizer.step()
    return p, optimizer


def state_bytes(state: dict) -> int:
    """Of all tensors in it, but for what is shared by all parameters: bitsandbytes' two maps."""
    tensors = [t for name, t in state.items() if isinstance(t, torch.Tensor) and "qmap" not in name]
    return sum(t.untyped_storage().nbytes() for t in tensors)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("n", SIZES)
def test_state_has_the_bytes_of_bitsandbytes(n, dtype):
    p, ours = stepped(AdamW8bit, n, 1, dtype)
    q, theirs = stepped(bitsandbytes.optim.AdamW8bit, n, 1, dtype)
    assert state_bytes(ours.state[p]) == state_bytes(theirs.state[q])
    assert state_bytes(ours.state[p]) == (8 * n if n < 4096 else 2 * (n + 4 * -(-n // 256)))
    if n >= 4096:
        maps = {theirs.state[q][name].untyped_storage() for name in ("qmap1", "qmap2")}
        assert [m.numel() for m in ours.maps(p.device)] == [256, 256]
        assert sum(m.nbytes() for m in maps) == sum(m.untyped_storage().nbytes() for m in ours.maps(p.device)) == 2048


@pytest.mark.parametrize("n", [4096, 5000, 65_536])
def test_after_one_step_scales_are_bitsandbytes_and_codes_one_off_at_most(n):
    """Later steps decode what its CPU kernel rounded by a table, so that scales differ, too."""
    p, ours = stepped(AdamW8bit, n, 1)
    q, theirs = stepped(bitsandbytes.optim.AdamW8bit, n, 1)
    mine, other = ours.state[p], theirs.state[q]
    torch.testing.assert_close(p, q)
    for name, number in (("m", 1), ("v", 2)):
        torch.testing.assert_close(mine[f"{name}_absmax"], other[f"absmax{number}"], rtol=1e-6, atol=0)
        one, two, values = mine[name].int(), other[f"state{number}"].int(), dynamic_map(name == "m")
        apart, one_off = (values[one] - values[two]).abs(), (one - two).abs() == 1  # apart in units of absmax
        assert apart[~one_off].max() < 3e-5, "more than its table is coarse"
        assert (apart > 3e-5).float().mean() < 0.03


@pytest.mark.parametrize("n", [4096, 5000])
def test_over_steps_codes_stay_close_to_bitsandbytes(n):
    p, ours = stepped(AdamW8bit, n, 10)
    q, theirs = stepped(bitsandbytes.optim.AdamW8bit, n, 10)
    mine, other = ours.state[p], theirs.state[q]
    for name, number in (("m", 1), ("v", 2)):
        torch.testing.assert_close(mine[f"{name}_absmax"], other[f"absmax{number}"], rtol=0.02, atol=0)
        off = (mine[name].int() - other[f"state{number}"].int()).abs()
        assert (off > 1).float().mean() < 0.01


@pytest.mark.parametrize("n", [4096, 5000])
def test_every_step_is_decode_adam_encode(n):
    """The facts' own oracle: dequantize, torch's formula, quantize."""
    p, optimizer = stepped(AdamW8bit, n, 3)
    maps = dynamic_map(True), dynamic_map(False)
    before, state = p.detach().clone(), {k: v for k, v in optimizer.state[p].items()}
    p.grad = gradient(n, 3)
    optimizer.step()
    m, v = (dequantize(state[name], state[f"{name}_absmax"], values) for name, values in zip("mv", maps))
    weight, m, v = adam_step(before, gradient(n, 3), m, v, 4, **OPTIONS)
    assert p.equal(weight)
    for name, moment, values in zip("mv", (m, v), maps):
        codes, absmax = quantize(moment, values)
        assert optimizer.state[p][name].equal(codes) and optimizer.state[p][f"{name}_absmax"].equal(absmax)


def test_a_small_tensor_is_updated_as_in_float32():
    p, _ = stepped(AdamW8bit, 4095, 10)
    q, _ = stepped(torch.optim.AdamW, 4095, 10)
    torch.testing.assert_close(p, q)


def test_the_weight_moves_by_what_is_not_rounded_yet():
    """Else an element whose v rounds to zero is divided by eps."""
    p = nn.Parameter(torch.zeros(4096))
    p.grad = torch.full((4096,), 1e-4)
    p.grad[::256] = 1.0  # v of all others is 1e-8 of their block's largest
    optimizer = AdamW8bit([p], lr=0.01, weight_decay=0.0)
    optimizer.step()
    torch.testing.assert_close(p, torch.full((4096,), -0.01), rtol=1e-3, atol=0)
    state, maps = optimizer.state[p], optimizer.maps(p.device)
    m, v = (dequantize(state[name], state[f"{name}_absmax"], values) for name, values in zip("mv", maps))
    assert v[1] == 0 and m[1] != 0
    rounded_first = 0.01 * (m / (1 - 0.9)) / ((v / (1 - 0.999)).sqrt() + 1e-8)
    assert rounded_first[1] > 1, "the trap: a step a hundred times too large, at least"


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_changes_nothing(bad):
    p, optimizer = stepped(AdamW8bit, 5000, 2)
    before, state = p.detach().clone(), {k: v for k, v in optimizer.state[p].items()}
    p.grad = gradient(5000, 2)
    p.grad[7] = bad
    with pytest.raises(ValueError, match=r"the gradient of a parameter of shape \(5000,\) holds NaN or infinity"):
        optimizer.step()
    assert p.equal(before)
    assert all(torch.equal(torch.as_tensor(optimizer.state[p][k]), torch.as_tensor(v)) for k, v in state.items())


def test_state_survives_saving_also_for_bfloat16_weights(tmp_path):
    p, first = stepped(AdamW8bit, 5000, 3, torch.bfloat16)
    torch.save(first.state_dict(), tmp_path / "optimizer.pt")
    q = nn.Parameter(p.detach().clone())
    again = AdamW8bit([q], **OPTIONS)
    again.load_state_dict(torch.load(tmp_path / "optimizer.pt", weights_only=True))
    for weight, optimizer in ((p, first), (q, again)):
        weight.grad = gradient(5000, 3).bfloat16()
        optimizer.step()
    assert p.equal(q)


def test_loading_makes_one_copy_and_nothing_in_float32():
    p, first = stepped(AdamW8bit, 65_536, 1)
    again, saved = AdamW8bit([p], **OPTIONS), first.state_dict()
    with MemoryMeter(optimizer=again) as meter:
        again.load_state_dict(saved)
    assert meter.result().peak.total == meter.result().ledger.optimizer == state_bytes(again.state[p])


def test_another_kind_is_named():
    with pytest.raises(ValueError, match="kind is 'float'; allowed: dynamic, linear"):
        AdamW8bit([nn.Parameter(torch.ones(1))], kind="float")


@pytest.mark.slow
def test_300_steps_end_within_1_percent_of_adam_in_float32_and_would_not_with_a_linear_map():
    batches, ends = random_windows(pretraining_text("train"), 4, 32, seed=0), {}
    makes = {"float32": torch.optim.AdamW, "8 bits": AdamW8bit, "linear": partial(AdamW8bit, kind="linear")}
    for name, make in makes.items():
        torch.manual_seed(0)
        model = GPT(GPTConfig(n_layer=2, n_embd=64, n_head=2, context=32))  # its matrices have 4,096 elements or more
        plan = TrainPlan(steps=300, lr=1e-3, warmup=20)
        history = train(model, batches, plan, optimizer=make(model.parameters(), lr=1e-3), progress=False)
        ends[name] = sum(history.losses[-50:]) / 50
    assert ends["8 bits"] == pytest.approx(ends["float32"], rel=0.01)
    assert ends["float32"] < 0.6 * math.log(256), "nothing was learned"
    assert ends["linear"] > 2 * ends["float32"]
