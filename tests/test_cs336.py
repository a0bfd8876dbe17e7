"""The model of CS336: its prediction against the meter, which runs the same operations in torch."""

from __future__ import annotations

import pytest

from minigpt.memory import Architecture, TrainingPlan, predict
from minigpt.memory.measured.building import build
from minigpt.memory.measured.step import measure

CONFIG = dict(model_type="cs336", vocab_size=512, context_length=96, d_model=64, num_layers=2, num_heads=4, d_ff=176)
PLANS = {
    "float32": dict(batch=3, seq_len=64),
    "one sequence": dict(batch=1, seq_len=96, holds="outputs"),
    "16 bits": dict(batch=2, seq_len=64, precision="bf16"),
    "autocast": dict(batch=3, seq_len=64, precision="bf16-autocast"),
    "a loop's own loss": dict(batch=2, seq_len=64, loss="shifted", accumulation=2),
    "few tokens, a first step": dict(batch=1, seq_len=8, step="first", optimizer="sgd_momentum"),
}


@pytest.mark.parametrize("edition", ["2026", "2025"])
@pytest.mark.parametrize("words", PLANS.values(), ids=list(PLANS))
def test_the_prediction_is_what_the_meter_reads(words, edition):
    model, plan = {**CONFIG, "edition": edition}, TrainingPlan(attention="eager", **words)
    predicted, measured = predict(model, plan), measure(model, plan, "cpu")
    assert predicted.peak.total == measured.peak.total
    assert predicted.ledger.activations == measured.ledger.activations
    for bucket in ("weights", "gradients", "optimizer"):
        assert getattr(predicted.ledger, bucket) == getattr(measured.ledger, bucket)


def test_any_size_on_fake_tensors():
    plan = TrainingPlan(batch=4, seq_len=96, attention="eager")
    wide = {**CONFIG, "d_model": 1024, "num_heads": 16, "d_ff": 4096}
    assert predict(wide, plan).peak.total == measure(wide, plan).peak.total


def test_its_parameters_are_the_modules():
    module = build(CONFIG, TrainingPlan(attention="eager"))
    architecture = Architecture.of(CONFIG)
    assert sorted(tensor.numel for tensor in architecture.tensors()) == sorted(p.numel() for p in module.parameters())


@pytest.mark.parametrize(
    ("changes", "words", "text"),
    [
        (dict(dropout=0.1), {}, "dropout is 0.1; cs336 has no such field"),
        (dict(edition="2024"), {}, "edition is '2024'"),
        (dict(num_heads=5), {}, "num_heads is 5; it must divide"),
        ({}, dict(attention="sdpa"), "attention is 'sdpa'; cs336 has 'eager' only"),
        ({}, dict(method="lora"), "method is 'lora'; cs336 has 'full' only"),
        ({}, dict(seq_len=97), "seq_len is 97; cs336's rotations end at its context_length, 96"),
        ({}, dict(loss="trl"), "loss is 'trl'; allowed with cs336: model, shifted"),
    ],
)
def test_what_it_has_not_is_refused_by_name(changes, words, text):
    with pytest.raises(ValueError, match=text):
        predict({**CONFIG, **changes}, TrainingPlan(**{"attention": "eager", "seq_len": 8, **words}))


def test_a_missing_size_is_named():
    with pytest.raises(ValueError, match="d_ff is missing"):
        Architecture.of({name: value for name, value in CONFIG.items() if name != "d_ff"})
