"""The meter against torch's own profiler, against tensors counted by hand, and fake tensors against real ones."""

from __future__ import annotations

import pytest
import torch

from minigpt.memory import MemoryMeter, TrainingPlan
from minigpt.memory.measured.building import build
from minigpt.memory.measured.meter import OPTIMIZER
from minigpt.memory.measured.optimizers import make_optimizer
from minigpt.memory.measured.step import make_batch, measure, training_step
from minigpt.model import GPTConfig
from tests.profiled import profiled_peak
from tools.models import MODELS, llama

KIB = 1024
PEAKS = {  # a model and plan for each place where the peak can be
    "start of backward": ("minigpt", TrainingPlan(batch=4, seq_len=128)),
    "inside a block": ("minigpt-16-tokens", TrainingPlan(batch=8, seq_len=64)),
    "tied head": ("minigpt-5000-tokens", TrainingPlan(batch=1, seq_len=8)),
    "optimizer's step": ("minigpt", TrainingPlan(batch=1, seq_len=16)),
    "eager attention": ("minigpt", TrainingPlan(batch=4, seq_len=128, attention="eager")),
    "llama": ("llama-grouped", TrainingPlan(batch=4, seq_len=128)),
    "llama, outputs held": ("llama-grouped", TrainingPlan(batch=4, seq_len=128, holds="outputs", use_cache=True)),
    "autocast": ("minigpt", TrainingPlan(batch=4, seq_len=128, precision="bf16-autocast")),
    "gpt2": ("gpt2", TrainingPlan(batch=4, seq_len=128, optimizer_loop="single")),
    "padded": ("llama-grouped", TrainingPlan(batch=4, seq_len=128, sequences="padded")),
    "packed": ("llama-grouped", TrainingPlan(batch=4, seq_len=128, sequences="packed", attention="eager")),
    "dropout": ("llama-grouped", TrainingPlan(batch=4, seq_len=128, method="lora", lora_dropout=0.1)),
    "gradients that stay": ("minigpt", TrainingPlan(batch=4, seq_len=128, zero_grad="in_place")),
    "optimizer in backward": ("minigpt", TrainingPlan(batch=1, seq_len=16, optimizer_in_backward=True)),
    "a loop's own loss": ("llama-grouped", TrainingPlan(batch=4, seq_len=128, precision="bf16", loss="shifted")),
    "a loss in pieces": ("llama-grouped", TrainingPlan(batch=4, seq_len=128, precision="bf16", loss="chunked")),
    "momentum": ("minigpt", TrainingPlan(batch=1, seq_len=16, optimizer="sgd_momentum")),
    "Kahan": ("minigpt", TrainingPlan(batch=1, seq_len=16, precision="bf16", optimizer="kahan_adamw")),
    "Adafactor": ("minigpt", TrainingPlan(batch=1, seq_len=16, precision="bf16", optimizer="adafactor")),
}


@pytest.mark.parametrize("inputs", [torch.zeros(2, 3), [1], {"tokens": torch.zeros(1)}, None], ids=str)
def test_inputs_that_are_no_tensors_are_refused(inputs):
    with pytest.raises(ValueError, match=f"inputs is a {type(inputs).__name__}; it must be a tuple"):
        MemoryMeter(inputs=inputs)


def prepared(name: str, plan: TrainingPlan):
    """A model after its first step, and the function that runs a second."""
    torch.manual_seed(0)
    module = build(MODELS[name], plan)
    optimizer = make_optimizer(module, plan)
    batch = make_batch(module, plan)
    training_step(module, optimizer, batch, plan)
    _let_go(optimizer, plan)
    return module, optimizer, batch


def _let_go(optimizer, plan: TrainingPlan) -> None:
    """The gradients that a step leaves, unless the next one wants them."""
    if plan.zero_grad == "before_forward":
        optimizer.zero_grad()


@pytest.mark.parametrize("where", PEAKS)
def test_peak_is_the_profilers(where):
    name, plan = PEAKS[where]
    module, optimizer, batch = prepared(name, plan)
    with MemoryMeter(module, optimizer, batch.tensors()) as meter:
        before = meter.live
        training_step(module, optimizer, batch, plan, meter.mark)
    _let_go(optimizer, plan)
    profiled = profiled_peak(lambda: training_step(module, optimizer, batch, plan))
    assert abs(meter.peak - before - profiled) <= KIB
    assert meter.result().peak.total == meter.peak


@pytest.mark.parametrize("where", PEAKS)
def test_fake_tensors_tell_the_truth(where):
    name, plan = PEAKS[where]
    fake, real = measure(MODELS[name], plan, "fake"), measure(MODELS[name], plan, "cpu")
    assert (fake.ledger, fake.peak) == (real.ledger, real.peak)


def test_buckets_are_the_tensors_counted_by_hand():
    name, plan = PEAKS["start of backward"]
    module, optimizer, batch = prepared(name, plan)
    with MemoryMeter(module, optimizer, batch.tensors()) as meter:
        training_step(module, optimizer, batch, plan, meter.mark)
    ledger = meter.result().ledger
    assert ledger.weights == sum(p.nbytes for p in module.parameters())
    assert ledger.gradients == sum(p.grad.nbytes for p in module.parameters())
    state = [t for s in optimizer.state.values() for t in s.values()]
    assert ledger.optimizer == sum(t.nbytes for t in state)


def test_saved_tensors_are_activations_until_they_are_used():
    x = torch.ones(1000, requires_grad=True)
    with MemoryMeter(inputs=(x,)) as meter:
        meter.mark("forward")
        y = x.exp()  # exp saves its result
        loss = (y + 1).sum()  # neither sum nor adding a number saves anything
        meter.mark("backward")
        loss.backward()
    timeline = meter.result().timeline()
    assert max(ledger.activations for _, ledger in timeline) == 4000
    assert timeline[-1][1].activations == 0
    assert all(phase in ("forward", "backward") for phase, _ in timeline)


def test_views_and_repeats_count_once():
    with MemoryMeter() as meter:
        meter.mark("forward")
        x = torch.zeros(256)
        views = [x.view(16, 16), x[3:], x.expand(4, 256)]
    assert meter.peak == 1024 and len(views) == 3


def test_frozen_weights_are_kept_apart():
    module = torch.nn.Sequential(torch.nn.Linear(8, 8, bias=False), torch.nn.Linear(8, 4, bias=False))
    module[0].requires_grad_(False)
    with MemoryMeter(module) as meter:
        meter.mark("forward")
        module(torch.ones(2, 8)).sum().backward()
    result = meter.result()
    assert (result.frozen, result.trainable, result.ledger.gradients) == (256, 128, 128)


def test_only_what_bitsandbytes_keeps_counts_as_its():
    """A layer of one's own may have attributes of the same names, which are no weights."""
    import bitsandbytes

    own, layer = torch.nn.Linear(8, 8, bias=False), bitsandbytes.nn.Linear8bitLt(8, 4, False, has_fp16_weights=False)
    own.code, own.weight.SCB = torch.ones(100), torch.ones(100)
    with MemoryMeter(torch.nn.ModuleList([own, layer.to("cpu")])) as meter:
        pass
    assert meter.result().ledger.weights == 256 + 8 * 4 + 4 * 4  # the last: a scale for each row


def test_a_gradient_that_is_added_to_is_one_from_its_birth_on():
    layer = torch.nn.Linear(100, 100, bias=False)
    with MemoryMeter(layer) as meter:
        meter.mark("forward")
        x = torch.ones(1, 100)
        loss = (layer(x) * layer(x)).sum()
        meter.mark("backward")
        loss.backward()
    assert meter.result().peak.gradients == 40_000 < meter.result().peak.temporary  # the second is added to the first


def test_a_resized_storage_is_followed():
    with MemoryMeter() as meter:
        x = torch.zeros(10)
        x.resize_(1000)
    assert meter.live == 4000


def test_state_that_no_operation_made_was_there_before():
    class WithTable(torch.optim.SGD):
        def __init__(self, parameters):
            super().__init__(parameters, lr=0.1)
            self.table = torch.zeros(256)  # as bitsandbytes has it, which puts it into the state at the first step

        def step(self):
            super().step()
            self.state[weight]["table"] = self.table

    weight = torch.nn.Parameter(torch.ones(1000))
    optimizer = WithTable([weight])
    with MemoryMeter(torch.nn.ParameterList([weight]), optimizer) as meter:
        meter.mark("backward")
        weight.sum().backward(torch.ones(()))
        meter.mark("step")
        weight * 2  # the largest instant
        optimizer.step()
    result = meter.result()
    assert ("before", OPTIMIZER, 1024) in result.events
    assert result.peak.optimizer == 1024 and result.peak.total == max(ledger.total for _, ledger in result.timeline())


def test_result_inside_the_region_is_refused():
    with MemoryMeter() as meter, pytest.raises(RuntimeError, match="still running"):
        meter.result()


def test_two_metered_steps_are_the_same():
    plan = TrainingPlan(batch=2, seq_len=32)
    module, optimizer, batch = prepared("minigpt", plan)
    results = []
    for _ in range(2):
        with MemoryMeter(module, optimizer, batch.tensors()) as meter:
            training_step(module, optimizer, batch, plan, meter.mark)
        optimizer.zero_grad()
        results.append(meter.result())
    assert results[0] == results[1]


def test_metering_does_not_change_training():
    plan = TrainingPlan(batch=2, seq_len=32)
    models = []
    for metered in (True, False):
        module, optimizer, batch = prepared("minigpt", plan)
        if metered:
            with MemoryMeter(module, optimizer, batch.tensors()):
                training_step(module, optimizer, batch, plan)
        else:
            training_step(module, optimizer, batch, plan)
        models.append(module)
    for metered, plain in zip(*(model.parameters() for model in models), strict=True):
        assert torch.equal(metered, plain)


def test_an_unknown_device_is_named():
    with pytest.raises(ValueError, match="device is 'tpu'; allowed: fake, cpu, cuda"):
        measure(GPTConfig.preset("nano"), TrainingPlan(), "tpu")


def test_masks_for_packed_sequences_do_not_appear_on_fake_tensors():
    """transformers cannot see on fake tensors that a batch is not packed; measure() tells it."""
    plan = TrainingPlan(batch=2, seq_len=32)
    assert measure(llama(), plan, "fake").ledger == measure(llama(), plan, "cpu").ledger


@pytest.mark.parametrize(
    ("config", "changes"),
    [(llama(model_type="phi", qk_layernorm=True), dict(precision="bf16-autocast")),
     (MODELS["gpt-oss"], dict(method="lora"))],
    ids=["LayerNorm of 16 bits by weights in float32", "frozen experts in float32"],
)  # fmt: skip
def test_fake_tensors_are_told_what_kernels_do(config, changes):
    plan = TrainingPlan(batch=2, seq_len=16, **changes)
    assert measure(config, plan, "fake").ledger == measure(config, plan, "cpu").ledger
