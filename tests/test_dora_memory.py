"""DoRA and rsLoRA: the prediction against the meter, at every phase's peak. ``make accuracy`` runs many more."""

from __future__ import annotations

import pytest

from minigpt import lora, nf4
from minigpt.memory import TrainingPlan, plan, predict
from minigpt.memory.engine import layers
from minigpt.memory.measured.step import measure
from minigpt.model import GPTConfig
from tools.accuracy import compare, errors
from tools.cases import Case
from tools.models import MODELS

FEW = dict(batch=1, seq_len=8)  # few tokens: the identity matrix and the copies of W are the peak


def peaks(step) -> dict[str, int]:
    """Bytes at the largest instant of each phase."""
    found = {}
    for phase, ledger in step.timeline():
        found[phase] = max(found.get(phase, 0), ledger.total)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [
        Case("llama-biased", TrainingPlan(method="lora", variant="dora", precision="bf16", **FEW)),
        Case("qwen2-tied", TrainingPlan(method="lora", variant="dora", precision="bf16-autocast", batch=2, seq_len=32)),
        Case("mistral", TrainingPlan(method="lora", variant="rslora", **FEW)),
        Case("llama-grouped", TrainingPlan(method="qlora", variant="dora", precision="bf16", **FEW)),
        Case("llama-biased", TrainingPlan(method="qlora", precision="bf16-autocast", **FEW)),
        Case("llama-tied", TrainingPlan(method="qlora", variant="dora", precision="bf16", double_quantization=False)),
        Case("minigpt", TrainingPlan(method="lora", variant="dora", precision="bf16-autocast", **FEW)),
        Case("minigpt", TrainingPlan(method="qlora", variant="dora", precision="bf16", **FEW)),
    ],
    ids=str,
)
def test_every_bucket_and_every_phase_is_exact(case):
    predicted, measured = compare(case, "cpu" if case.needs_values else "fake")
    assert {name: off for name, (off, _) in errors(predicted, measured).items() if off} == {}
    assert peaks(predicted) == peaks(measured)


@pytest.mark.parametrize("precision", ["bf16", "bf16-autocast"])
def test_our_own_4_bit_layers_are_exact_in_every_phase(precision):
    """Wide enough that a copy too many, such as peft's clone of the base's result, would be seen."""
    wide = GPTConfig(n_layer=1, n_embd=256, n_head=4, vocab_size=256)
    chosen = TrainingPlan(method="qlora", precision=precision, kbit_preparation=False, batch=3, seq_len=96)
    assert peaks(predict(wide, chosen)) == peaks(measure(wide, chosen))


@pytest.mark.parametrize("model", ["minigpt", "llama-grouped"])
def test_what_the_variants_add(model):
    """rsLoRA: nothing. DoRA: one number for each output of a target, as peft and ``inject`` make it."""
    steps = {v: predict(MODELS[model], TrainingPlan(method="lora", variant=v)) for v in lora.KINDS}
    assert steps["rslora"] == steps["lora"]
    added = steps["dora"].trainable - steps["lora"].trainable
    assert added == 4 * 3 * {"minigpt": 9 * 64, "llama-grouped": 64 + 2 * 32 + 64 + 2 * 176 + 64}[model]
    assert steps["dora"].ledger.gradients - steps["lora"].ledger.gradients == added


def test_the_names_and_sizes_are_those_of_the_layers():
    assert plan.ALLOWED["variant"] == lora.KINDS
    assert layers.OWN_CHUNK == nf4.CPU_CHUNK // layers.BLOCK * layers.BLOCK


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(method="lora", variant="pissa"), "variant is 'pissa'; allowed: lora, rslora, dora"),
        (dict(variant="dora"), "variant is 'dora'; method 'full' has no adapters: allowed with it: lora"),
    ],
)
def test_bad_variants_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        TrainingPlan(**changes)
