"""GaLore's bytes: the state against the formula, the step against the meter, and what is refused."""

from __future__ import annotations

import pytest

from minigpt.memory import Architecture, TrainingPlan, predict
from minigpt.memory.measured.step import measure
from minigpt.memory.predicted.static import predict_static
from minigpt.model import GPTConfig
from tools.models import MODELS

MINIGPT = GPTConfig(n_layer=2, n_embd=32, n_head=2, context=16)
FEW = dict(batch=1, seq_len=8, optimizer="galore", rank=4)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("targets", ["all-linear", "q,v"])
@pytest.mark.parametrize("model", [MINIGPT, MODELS["llama-grouped"]], ids=["minigpt", "llama"])
def test_state_is_min_r_and_2_max_r_elements_and_two_moments_of_what_is_not_projected(model, targets, precision):
    plan = TrainingPlan(**FEW, targets=targets, precision=precision)
    names, elements = targets.split(","), 0
    for tensor in Architecture.of(model).tensors():
        projected = tensor.kind == "linear" and (targets == "all-linear" or tensor.name.split(".")[-1] in names)
        short, long = sorted(tensor.shape) if projected else (0, 0)
        elements += short * 4 + 2 * long * 4 if projected else 2 * tensor.numel
    expected = elements * (4 if precision == "fp32" else 2)
    assert predict_static(model, plan).optimizer == predict(model, plan).ledger.optimizer == expected


@pytest.mark.parametrize("words", [{}, dict(precision="bf16"), dict(optimizer_in_backward=True)], ids=str)
@pytest.mark.parametrize("step", ["steady", "first", "resumed", "refresh"])
def test_a_step_is_predicted_to_the_byte(step, words):
    plan = TrainingPlan(**FEW, step=step, **words)
    predicted, measured = predict(MINIGPT, plan), measure(MINIGPT, plan, "cpu")
    assert predicted.peak == measured.peak
    for bucket in ("weights", "gradients", "optimizer", "activations"):
        assert getattr(predicted.ledger, bucket) == getattr(measured.ledger, bucket), bucket


def test_the_step_with_an_svd_is_the_largest_and_in_backward_gradients_die_early():
    few_words = GPTConfig(n_layer=2, n_embd=32, n_head=2, context=16, vocab_size=16)  # else its table is the largest

    def peak(**words) -> int:
        return predict(few_words, TrainingPlan(**FEW, **words)).peak.total

    assert peak(step="refresh") > peak()
    held = predict(MINIGPT, TrainingPlan(**FEW, optimizer_in_backward=True)).ledger.gradients
    assert held < predict(MINIGPT, TrainingPlan(**FEW)).ledger.gradients / 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (dict(method="lora"), "optimizer is 'galore'; with method 'lora' there is nothing left to project"),
        (dict(targets="peft"), "targets is 'peft', which is about adapters; with GaLore allowed: all-linear, or names"),
        (dict(targets="q,head"), "targets is 'q,head'; GaLore projects matrices of the blocks, not the head"),
        (dict(precision="bf16-master"), "optimizer is 'galore'; with precision 'bf16-master' allowed: adamw"),
        (
            dict(optimizer="sgd", step="refresh"),
            "step is 'refresh'; with optimizer 'sgd' allowed: steady, first, resumed",
        ),
    ],
)
def test_what_does_not_go_together_is_named(words, message):
    with pytest.raises(ValueError, match=message):
        TrainingPlan(**{**FEW, **words})


@pytest.mark.parametrize("ask", [predict, lambda model, plan: measure(model, plan, "cpu")], ids=["predict", "measure"])
def test_a_rank_or_a_target_that_the_model_has_no_room_for_is_named(ask):
    with pytest.raises(ValueError, match="rank is 33; the smallest side of a target is 32"):
        ask(MINIGPT, TrainingPlan(**{**FEW, "rank": 33}))
    with pytest.raises(ValueError, match="targets has 'gate'; allowed: all-linear, or some of"):
        ask(MINIGPT, TrainingPlan(**FEW, targets="gate"))


def test_experts_are_refused():
    with pytest.raises(ValueError, match="optimizer is 'galore', which projects matrices; a mixture's experts"):
        predict(MODELS["mixtral"], TrainingPlan(**FEW))
