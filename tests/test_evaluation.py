"""Trainer's evaluation: predicted as it is measured, to the byte, its size by hand, and what a card reserves for it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from minigpt.memory import TrainingPlan, measure_evaluation, predict_evaluation
from minigpt.memory.engine.graph import BORN, DEAD
from minigpt.memory.evaluation import Evaluation
from minigpt.memory.plots.replayed import Replay
from minigpt.memory.predicted.cuda import LT_WORKSPACE
from minigpt.memory.predicted.reserved import counted, history, reserve
from minigpt.memory.predicted.training import Training
from minigpt.memory.units import GIB, MIB
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


# ------------------------------------------------------------ on a card


ON_A_CARD = [
    ("llama-grouped", {}, dict(samples=22)),
    ("llama-grouped", dict(precision="bf16-autocast", zero_grad="before_backward"), dict(samples=30, batch=4)),
    ("llama-grouped", dict(step="first", use_cache=True), dict(samples=40, prediction_loss_only=True)),
    ("gpt2", dict(precision="bf16", method="lora", checkpointing="full"), dict(samples=30, eval_accumulation_steps=2)),
    ("gpt2-dropout", dict(zero_grad="in_place", optimizer="adamw8bit"), dict(samples=17)),
    ("llama-grouped", dict(method="qlora", precision="fp16", step="resumed"), dict(samples=17)),
]


@pytest.mark.parametrize(("model", "words", "asked"), ON_A_CARD)
def test_between_two_steps_it_has_the_peak_that_it_has_alone(model, words, asked):
    """Every batch is gone through, beside the training's own; alone, as ``measure_evaluation`` metered it, few are."""
    plan = TrainingPlan(batch=2, seq_len=32, card="T4", **words)
    told = history(MODELS[model], plan, evaluation=Evaluation(**asked))
    live, most = 0, [0] * len(told.parts)
    for count, (_, record, what) in enumerate(told.tape.events):
        live += record.nbytes * ((what == BORN) - (what == DEAD))
        part = sum(count >= began for began in told.parts) - 1
        most[part] = max(most[part], live)
    found = predict_evaluation(MODELS[model], plan, **asked)
    batch = 2 * 8 * plan.tokens  # the last step's tokens and targets
    more = most[-2] - batch - found.peak.total
    assert 0 <= more <= (LT_WORKSPACE if plan.checkpointing != "none" else 0)
    assert most[-1] == most[-3] if plan.zero_grad == "before_forward" else most[-1] < most[-3]
    assert found.card == counted(told) == reserve(MODELS[model], plan, Evaluation(**asked))


def test_each_joined_set_takes_a_segment_of_its_own():
    """No free piece has room for a set that is larger than all before it, and the one before it is still in use."""
    model = dict(MODELS["llama-grouped"], vocab_size=32_000)
    plan = TrainingPlan(batch=1, seq_len=64, card="A100 80GB")
    reserved = [reserve(model, plan, Evaluation(8 * batches)).reserved for batches in range(8, 12)]
    logits = 8 * 64 * 32_000 * 4
    taken = [-(-batches * logits // (2 * MIB)) * 2 * MIB for batches in range(9, 12)]
    assert [b - a for a, b in zip(reserved, reserved[1:])] == taken


def test_fewer_logits_reserve_less_and_a_full_card_gives_old_sets_back():
    plan = TrainingPlan(batch=4, seq_len=256, card="T4")
    kept, away, none = (
        predict_evaluation("gpt2", plan, 100, **asked).card
        for asked in ({}, dict(eval_accumulation_steps=4), dict(prediction_loss_only=True))
    )
    assert kept.reserved > 16 * GIB and not kept.failed
    assert kept.reserved > away.reserved > none.reserved and kept.allocated > away.allocated > none.allocated
    assert (kept.allocated_at, none.allocated_at) == ("evaluation, the set so far", "backward, head: log_softmax")
    assert predict_evaluation("gpt2", plan, 400).card.failed.startswith("CUDA out of memory. Tried to allocate ")


def test_a_replayed_run_has_an_evaluation_between_its_steps():
    plan, asked = TrainingPlan(batch=2, seq_len=64, card="T4"), Evaluation(40, eval_accumulation_steps=2)
    run = Replay("smollm2-135m", plan).step().step().evaluate(asked).step()
    assert [name for name, _ in run.marks].count("evaluation") == 1 and len(run.peaks()) == 4
    found = reserve("smollm2-135m", plan, asked)
    assert (run.allocator.statistics.reserved.peak, max(run.peaks()[2:])[0]) == (found.reserved, found.allocated)


def test_trainer_has_no_gradients_then_and_empties_the_cache_after_each_round(tmp_path, monkeypatch):
    """transformers' own loop, on a CPU; the tape empties in the same places."""
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**MODELS["llama-grouped"]))
    data = [dict(input_ids=torch.arange(8), labels=torch.arange(8))] * 22
    arguments = transformers.TrainingArguments(
        tmp_path, max_steps=2, per_device_train_batch_size=2, per_device_eval_batch_size=4, eval_strategy="steps",
        eval_steps=1, eval_accumulation_steps=2, use_cpu=True, report_to=[], save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    emptied = []
    trainer = transformers.Trainer(
        model, arguments, train_dataset=data, eval_dataset=data, compute_metrics=lambda predicted: {}
    )
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append([p.grad for p in model.parameters()]))
    trainer.train()
    assert len(emptied) == 2 * 3 and all(gradient is None for each in emptied for gradient in each)
    training = Training(MODELS["llama-grouped"], TrainingPlan(batch=2, seq_len=8, card="T4"))
    training.step()
    began = len(training.tape.events)
    training.evaluate(Evaluation(22, 4, eval_accumulation_steps=2))
    assert len(training.tape.emptied) == 3 and training.tape.emptied[0] > began
    assert training.tape.emptied[-1] == len(training.tape.events)


@pytest.mark.parametrize(
    "words, match", [(dict(loss="trl"), "loss is 'trl'"), (dict(logits_to_keep=1), "logits_to_ke")]
)
def test_a_card_refuses_the_same(words, match):
    plan = TrainingPlan(seq_len=8, card="T4")
    with pytest.raises(ValueError, match=match):
        reserve(MODELS["llama-grouped"], replace(plan, **words), Evaluation(4))
    with pytest.raises(ValueError, match="the model is MiniGPT"):
        reserve(MODELS["minigpt"], plan, Evaluation(4))
