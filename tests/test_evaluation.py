"""Trainer's evaluation: predicted as it is measured, to the byte, and its size by hand."""

from __future__ import annotations

import pytest

from minigpt.memory import TrainingPlan, measure_evaluation, predict_evaluation
from tools.accuracy import compare
from tools.cases import groups
from tools.models import MODELS

CASES = groups()["words: evaluation"]


@pytest.mark.parametrize("case", CASES[::6], ids=str)
def test_it_is_predicted_as_it_is_measured(case):
    predicted, measured = compare(case, "cpu")
    assert (predicted.ledger, predicted.peak) == (measured.ledger, measured.peak)
    assert predicted.frozen == measured.frozen and measured.ledger.activations == measured.ledger.gradients == 0


@pytest.mark.parametrize("samples", (1, 9, 17, 22))
def test_batches_that_are_left_out_change_nothing(samples):
    """Sets of one batch, of a whole number of them, and with a rest, of which a few or most are not gone through."""
    plan = TrainingPlan(seq_len=16, precision="bf16")
    for batch in (2, 4):
        predicted, measured = (
            evaluate(MODELS["llama-grouped"], plan, samples, batch)
            for evaluate in (predict_evaluation, measure_evaluation)
        )
        assert predicted.peak == measured.peak


def test_the_logits_of_a_set():
    """1,000 times 512 tokens and 30,522 words, in float32, are 62.5 GB; twice that while the last batch is joined."""
    bert_like = dict(MODELS["llama-grouped"], vocab_size=30_522, max_position_embeddings=512)
    logits = 1000 * 512 * 30_522 * 4
    assert round(logits / 1e9, 1) == 62.5
    step = predict_evaluation(bert_like, TrainingPlan(seq_len=512, precision="bf16", autocast=True), 1000)
    assert 2 * logits < step.peak.total < 2.02 * logits
    sent = predict_evaluation(bert_like, TrainingPlan(seq_len=512), 1000, eval_accumulation_steps=10)
    assert sent.peak.total < 0.2 * logits


@pytest.mark.parametrize(
    ("words", "options", "match"),
    [
        (dict(loss="trl"), {}, "loss is 'trl'; in Trainer's evaluation it must be 'model'"),
        (dict(logits_to_keep=1), {}, "logits_to_keep is 1"),
        ({}, dict(samples=0), "samples is 0"),
        ({}, dict(batch=0), "batch is 0"),
        ({}, dict(prediction_loss_only=1), "prediction_loss_only is 1"),
        ({}, dict(eval_accumulation_steps=0), "eval_accumulation_steps is 0"),
    ],
)
@pytest.mark.parametrize("evaluate", [predict_evaluation, measure_evaluation])
def test_what_trainer_does_not_do_is_refused(evaluate, words, options, match):
    with pytest.raises(ValueError, match=match):
        evaluate(MODELS["llama-grouped"], TrainingPlan(seq_len=8, **words), **{"samples": 4, **options})


def test_minigpt_is_refused_by_both():
    for evaluate in (predict_evaluation, measure_evaluation):
        with pytest.raises(
            ValueError, match="the model is MiniGPT; transformers' Trainer evaluates Hugging Face models"
        ):
            evaluate(MODELS["minigpt"], TrainingPlan(seq_len=8), 4)
