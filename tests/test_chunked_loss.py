"""The loss in chunks against torch's own, its shapes by Hypothesis, and its memory by the meter."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from minigpt.chunked_loss import chunked_cross_entropy
from minigpt.memory import MemoryMeter
from minigpt.model import GPT, GPTConfig, cross_entropy

NANO = GPTConfig.preset("nano", n_layer=1, context=64)
sizes = st.integers(1, 9)


def plain(hidden: Tensor, weight: Tensor, targets: Tensor, ignore_index: int = -100) -> Tensor:
    logits = (hidden @ weight.T).flatten(0, -2)
    wide = torch.promote_types(logits.dtype, torch.float32)
    return F.cross_entropy(logits.to(wide), targets.flatten(), ignore_index=ignore_index)


def inputs(shape: tuple[int, ...], C: int, V: int, dtype: torch.dtype, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    hidden = torch.randn(*shape, C, generator=random, dtype=torch.float64).to(dtype).requires_grad_()
    weight = torch.randn(V, C, generator=random, dtype=torch.float64).to(dtype).requires_grad_()
    return hidden, weight, torch.randint(0, V, shape, generator=random)


def both(hidden: Tensor, weight: Tensor, targets: Tensor, scale: float = 1.0, ignore_index: int = -100, **options):
    """(loss, its gradients), in chunks and plain."""
    found = []
    for loss in (chunked_cross_entropy(hidden, weight, targets, ignore_index=ignore_index, **options),
                 plain(hidden, weight, targets, ignore_index)):  # fmt: skip
        found.append((loss, *torch.autograd.grad(scale * loss, (hidden, weight))))
    return found


@settings(max_examples=30, deadline=None)
@given(
    shape=st.lists(sizes, min_size=1, max_size=3).map(tuple),
    C=sizes,
    V=st.integers(2, 12),
    chunk=st.integers(1, 40),
    seed=st.integers(0, 99),
    ignored=st.floats(0, 0.9, allow_subnormal=False),  # minigpt.train makes CPUs take them as 0
    wide=st.booleans(),
)
def test_loss_and_gradients_are_those_of_all_logits(shape, C, V, chunk, seed, ignored, wide):
    """In float64 to 1e-12 and in float32 to its rounding, whatever the shapes and wherever a chunk ends."""
    dtype, far = (torch.float64, 1e-12) if wide else (torch.float32, 3e-6)
    hidden, weight, targets = inputs(shape, C, V, dtype, seed)
    left_out = torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < ignored
    left_out.view(-1)[0] = False
    ours, theirs = both(hidden, weight, targets.masked_fill(left_out, -100), chunk=chunk)
    for one, other in zip(ours, theirs, strict=True):
        assert one.dtype == other.dtype == dtype and one.shape == other.shape
        torch.testing.assert_close(one, other, rtol=far, atol=far)


def test_gradcheck():
    hidden, weight, targets = inputs((2, 3), 4, 5, torch.float64)
    assert torch.autograd.gradcheck(lambda h, w: chunked_cross_entropy(h, w, targets, chunk=4), (hidden, weight))


def test_the_incoming_gradient_multiplies():
    """As accumulation divides a loss, or a GradScaler multiplies it."""
    ours, theirs = both(*inputs((4, 7), 8, 11, torch.float64), scale=0.125, chunk=5)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_any_word_can_be_the_ignored_one():
    hidden, weight, targets = inputs((40,), 6, 4, torch.float64)
    assert (targets == 0).any()
    ours, theirs = both(hidden, weight, targets, ignore_index=0, chunk=7)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_without_a_target_the_loss_is_torchs_nan_and_gradients_are_zero():
    hidden, weight, targets = inputs((6,), 4, 5, torch.float32)
    for loss, *gradients in both(hidden, weight, torch.full_like(targets, -100)):
        assert loss.isnan() and not any(g.any() for g in gradients)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_in_16_bits_gradients_are_as_close_to_the_truth_as_torchs(dtype):
    """The truth is the loss of the same 16-bit numbers in float64."""
    hidden, weight, targets = inputs((8, 16), 32, 50, dtype)
    ours, theirs = both(hidden, weight, targets, chunk=10)
    exact = both(*(x.detach().double().requires_grad_() for x in (hidden, weight)), targets)[1]
    for mine, torchs, true in zip(ours[1:], theirs[1:], exact[1:], strict=True):
        assert mine.dtype == dtype
        error, allowed = ((found.double() - true).norm() / true.norm() for found in (mine, torchs))
        assert error < 1.1 * allowed < 0.02


def test_under_autocast_products_run_in_its_dtype_and_gradients_come_in_float32():
    hidden, weight, targets = inputs((4, 8), 16, 20, torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        ours, theirs = both(hidden, weight, targets, chunk=9)
    assert {x.dtype for x in ours} == {torch.float32}
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=0.02, atol=2e-4)
    assert not torch.equal(ours[0], chunked_cross_entropy(hidden, weight, targets))  # which is float32's


@pytest.mark.parametrize("frozen", [0, 1])
def test_what_is_frozen_gets_no_gradient_and_costs_none(frozen):
    trained = inputs((3, 5), 4, 6, torch.float64)
    both_trained = torch.autograd.grad(chunked_cross_entropy(*trained, chunk=4), trained[:2])[1 - frozen]
    tensors = inputs((3, 5), 4, 6, torch.float64)
    tensors[frozen].requires_grad_(False)
    loss = chunked_cross_entropy(*tensors, chunk=4)
    assert [x is not None for x in loss.grad_fn.saved_tensors] == [frozen != 0, frozen != 1]
    loss.backward()
    assert tensors[frozen].grad is None and torch.equal(tensors[1 - frozen].grad, both_trained)


def test_minigpts_tied_head_gets_both_gradients():
    """The embedding's own and the head's, as with all logits."""
    torch.manual_seed(0)
    model = GPT(NANO).double()
    tokens, targets = torch.randint(0, 256, (2, 2, 64))
    model(tokens, targets, upcast=False).backward()
    plain = {name: p.grad for name, p in model.named_parameters()}
    model.zero_grad()
    chunked_cross_entropy(model.hidden(tokens), model.lm_head.weight, targets, chunk=50).backward()
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.grad, plain[name], rtol=1e-10, atol=1e-12)


def metered(hidden, weight, targets, run, grad=True):
    """(bytes saved when forward ends, most bytes above what was there, largest single storage)."""
    with torch.set_grad_enabled(grad), MemoryMeter(inputs=(hidden, weight, targets)) as meter:
        meter.mark("forward")
        loss = run(hidden, weight, targets)
        if grad:
            meter.mark("backward")
            loss.backward()
    step, there = meter.result(), sum(x.untyped_storage().nbytes() for x in (hidden, weight, targets))
    saved = [ledger.activations for phase, ledger in step.timeline() if phase == "forward"][-1] if grad else 0
    largest = max(change for phase, _, change in step.events if phase != "before")
    return saved, step.peak.total - there, largest


def test_no_storage_of_tokens_times_words_is_ever_there():
    N, C, V, chunk = 512, 16, 2000, 32
    tensors = inputs((N,), C, V, torch.float32)
    saved, above, largest = metered(*tensors, lambda *t: chunked_cross_entropy(*t, chunk=chunk))
    assert saved == 4 * N * C + 4 * V * C  # the two gradients
    tile = 4 * chunk * V
    assert largest == tile
    assert (
        2 * tile < above < saved + 2 * tile + 4 * V * C + 100 * N
    )  # two tiles, and a product on its way into d_weight
    plain_saved, plain_above, plain_largest = metered(*tensors, plain)
    assert plain_largest == 4 * N * V <= plain_saved and plain_above >= 3 * 4 * N * V


def test_an_evaluation_makes_no_gradients():
    tensors = inputs((512,), 16, 2000, torch.float32)
    _, above, _ = metered(*tensors, lambda *t: chunked_cross_entropy(*t, chunk=32), grad=False)
    assert above < 2.1 * 4 * 32 * 2000
    with torch.no_grad():
        assert torch.equal(chunked_cross_entropy(*tensors, chunk=32), chunked_cross_entropy(*tensors, chunk=32))


def test_gradients_of_gradients_are_refused():
    hidden, weight, targets = inputs((4,), 3, 5, torch.float64)
    (gradient,) = torch.autograd.grad(chunked_cross_entropy(hidden, weight, targets), hidden, create_graph=True)
    with pytest.raises(RuntimeError, match="does not require grad"):
        gradient.sum().backward()


@pytest.mark.parametrize(
    ("shapes", "chunk", "message"),
    [
        (((4, 8), (10, 7), (4,)), 2, r"weight has shape \(10, 7\); with hidden \(4, 8\) it must be \(words, 8\)"),
        (((4, 8), (8,), (4,)), 2, r"weight has shape \(8,\)"),
        (((2, 3, 8), (10, 8), (6,)), 2, r"targets has shape \(6,\); it must be \(2, 3\), as hidden"),
        (((4, 8), (10, 8), (4,)), 0, "chunk is 0; it must be an integer of at least 1"),
    ],
)
def test_what_does_not_belong_together_is_refused(shapes, chunk, message):
    hidden, weight, targets = shapes
    with pytest.raises(ValueError, match=message):
        chunked_cross_entropy(torch.ones(hidden), torch.ones(weight), torch.zeros(targets, dtype=int), chunk=chunk)


def test_the_models_own_loss_is_the_same():
    torch.manual_seed(1)
    model = GPT(NANO)
    tokens, targets = torch.randint(0, 256, (2, 2, 64))
    chunked = chunked_cross_entropy(model.hidden(tokens), model.lm_head.weight, targets, chunk=30)
    torch.testing.assert_close(chunked, cross_entropy(model(tokens), targets))
