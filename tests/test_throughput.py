"""Seconds of a step: its parts by hand, what is in float32 by the products that torch really makes, and refusals."""

from dataclasses import replace
from datetime import date

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from minigpt.memory import Architecture, TrainingPlan
from minigpt.memory.gpus import GPUS
from minigpt.memory.measured.building import build
from minigpt.memory.measured.optimizers import make_optimizer
from minigpt.memory.measured.step import make_batch, training_step
from minigpt.memory.predicted.cost import Price, breaks_even, million_tokens_dollars, run_dollars
from minigpt.memory.predicted.flops import flops
from minigpt.memory.predicted.throughput import float32_flops, step_seconds
from tests.test_flops import UNKNOWN
from tools.models import MODELS

SEVEN = TrainingPlan(batch=4, seq_len=512, precision="bf16")
A100 = GPUS["A100 80GB"]


class Float32(TorchDispatchMode):
    """FLOPs of products whose result is float32, by torch's own formulas."""

    def __init__(self):
        super().__init__()
        self.flops = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        out = operation(*args, **(kwargs or {}))
        packet, first = operation._overloadpacket, out[0] if isinstance(out, tuple) else out
        if packet in {**flop_registry, **UNKNOWN} and first.dtype == torch.float32:
            if packet in UNKNOWN:
                shapes = [a.shape if isinstance(a, torch.Tensor) else a for a in args]
                self.flops += UNKNOWN[packet](*shapes)
            else:
                self.flops += flop_registry[packet](*args, **(kwargs or {}), out_val=out)
        return out


@pytest.mark.parametrize(
    "words",
    [
        dict(method="lora", checkpointing="full"),
        dict(method="lora", targets="q,v"),
        dict(method="qlora", checkpointing="full"),
        dict(method="qlora", kbit_preparation=False),
        dict(method="lora", autocast=True),
    ],
)
def test_what_is_multiplied_in_float32_is_what_torch_multiplies_so(words):
    """All but the gradients that the first block's inputs do not need, which the formula counts: under 7% here."""
    plan = TrainingPlan(batch=2, seq_len=32, precision="bf16", **words)
    module = build(MODELS["llama-grouped"], plan, "cpu")
    optimizer, batch = make_optimizer(module, plan), make_batch(module, plan)
    with Float32() as counted:
        training_step(module, optimizer, batch, plan, lambda phase: None)
    turning = 32 * Architecture.of(MODELS["llama-grouped"]).head_dim  # rotary angles, always in float32
    found = float32_flops(MODELS["llama-grouped"], plan, flops(MODELS["llama-grouped"], plan))
    assert 0 <= found - (counted.flops - turning) <= 0.07 * found


def test_products_by_hand():
    step = step_seconds("llama-7b", SEVEN, "A100 80GB", mfu=0.4)
    work = flops("llama-7b", SEVEN)
    scores = 4 * 2048 * 512 * 4096 * 32 * 3.5
    assert step.products == pytest.approx((work.total - scores / 2) / 312e12 / 0.4)
    assert (step.tokens, step.decoding, step.bus) == (2048, 0, 0)
    assert step.total == step.products + step.update
    assert 0.9 * 0.4 < step.mfu < 0.4 * work.total / (work.total - scores / 2)


def test_the_update_moves_28_bytes_per_float32_parameter():
    plan = replace(SEVEN, precision="fp32")
    step = step_seconds("llama-7b", plan, "A100 80GB")
    assert step.update == pytest.approx(28 * 6_738_415_616 / A100.bandwidth, rel=1e-6)


def test_few_tokens_wait_for_the_weights():
    """One token: forward, and twice in backward, all weights are read."""
    step = step_seconds("llama-7b", replace(SEVEN, batch=1, seq_len=1), "A100 80GB")
    assert step.products == pytest.approx(3 * 2 * 6_738_415_616 / A100.bandwidth)
    assert step.total < step_seconds("llama-7b", replace(SEVEN, batch=1, seq_len=1), "T4").total


def test_passes_add_up_and_the_update_does_not():
    one, four = (step_seconds("llama-7b", replace(SEVEN, accumulation=n), "A100 80GB") for n in (1, 4))
    assert four.products == pytest.approx(4 * one.products) and four.update == one.update
    assert four.tokens == 4 * one.tokens and four.tokens_per_second > one.tokens_per_second


def test_checkpointing_costs_time_and_lowers_palms_mfu():
    plain, full = (step_seconds("llama-7b", replace(SEVEN, checkpointing=k), "A100 80GB") for k in ("none", "full"))
    assert 1.2 < full.products / plain.products < 1.34
    assert full.mfu == pytest.approx(plain.mfu * plain.total / full.total)


def test_offload_waits_for_the_bus_where_that_is_slower():
    plan = replace(SEVEN, checkpointing="offload")
    step = step_seconds("llama-7b", plan, "A100 80GB")
    moved = 2 * 2048 * 4096 * 32
    assert step.bus == pytest.approx(2 * moved / A100.bus, rel=0.05) and step.total > step.bus


def test_four_bits_are_made_whole_each_time():
    plan = replace(SEVEN, method="qlora", autocast=True)
    step = step_seconds("llama-7b", plan, "A100 80GB")
    linear = Architecture.of("llama-7b").linear_parameters
    least, most = (2 * linear * nbytes / A100.bandwidth for nbytes in (2.5, 2.8))
    assert least < step.decoding < most
    assert (
        step_seconds("llama-7b", replace(plan, kbit_preparation=True, autocast=False), "A100 80GB").total > step.total
    )


def test_a_format_that_a_card_has_not_goes_at_float32s_speed():
    bf16, fp16 = (step_seconds("llama-7b", replace(SEVEN, precision=p), "T4") for p in ("bf16", "fp16"))
    assert bf16.products == pytest.approx(fp16.products * 65 / 8.1, rel=0.01)


def test_what_is_refused():
    with pytest.raises(ValueError, match="card is None; allowed: T4"):
        step_seconds("llama-7b", SEVEN)
    for mfu in (0, 1.01, "0.4", True):
        with pytest.raises(ValueError, match="mfu is"):
            step_seconds("llama-7b", SEVEN, "T4", mfu)


def test_dollars():
    price, dear = (Price(card, n, "a page", date(2026, 11, 9)) for card, n in (("a10080gb", 1.8), ("H100 80GB", 3.6)))
    step = step_seconds("llama-7b", SEVEN, price.card)
    assert run_dollars(step, 1000, price, hours_beside=0.5) == pytest.approx((step.total * 1000 / 3600 + 0.5) * 1.8)
    assert million_tokens_dollars(step, price) == pytest.approx(1.8 / 3600 * step.total / 2048 * 1e6)
    assert breaks_even(price, dear) == 2
    for count in (lambda: run_dollars(step, 1, dear), lambda: million_tokens_dollars(step, dear)):
        with pytest.raises(ValueError, match="price is of H100 80GB; the seconds are of A100 80GB"):
            count()
    for bad in (("A100 80GB", 0, "a page", date(2026, 11, 9)), ("A100 80GB", 1, "", date(2026, 11, 9)),
                ("A100 80GB", 1, "a page", "today"), ("A100", 1, "a page", date(2026, 11, 9)),
                ("A100 80GB", float("nan"), "a page", date(2026, 11, 9)),
                ("A100 80GB", float("inf"), "a page", date(2026, 11, 9)),
                ("A100 80GB", 1, 3, date(2026, 11, 9))):  # fmt: skip
        with pytest.raises(ValueError):
            Price(*bad)
    for hours in (-1, None, "1", float("nan"), float("inf"), True):
        with pytest.raises(ValueError, match="hours_beside is"):
            run_dollars(step, 1, price, hours)
