"""Judging a training step and a run: by the meter, by weights alone, and by replies that are none.

The oracles: the meter's reading of the course's own step, and the course's own loop. Answers are in lab 02's bank.
"""

from __future__ import annotations

import copy

import pytest
import torch

from minigpt.checks import Wrong, training
from minigpt.checks.counting import ledger, saved
from minigpt.checks.probes import training as asked
from minigpt.model import GPT, IGNORE, GPTConfig


def step(model, optimizer, micro_batches):
    total = sum(int((targets != IGNORE).sum()) for _, targets in micro_batches)
    optimizer.zero_grad()
    loss = 0.0
    for tokens, targets in micro_batches:
        part = model(tokens, targets) * (int((targets != IGNORE).sum()) / total)
        part.backward()
        loss += part.item()
    optimizer.step()
    return loss


def held(model, optimizer, micro_batches):
    """One backward for all: every graph lives until then."""
    optimizer.zero_grad()
    sum(model(*batch) for batch in micro_batches).backward()
    optimizer.step()
    return 0.0


def nothing(model, optimizer, micro_batches):
    return 0.0


@pytest.mark.parametrize("count", [1, 3])
def test_what_a_step_saves_at_once_is_what_the_meter_reads_of_one_micro_batch(count):
    config, batch, seq_len = GPTConfig(n_layer=2, n_embd=24, n_head=3, context=20, vocab_size=50), 2, 17
    tokens = [torch.randint(50, (batch, seq_len)) for _ in range(2 * count)]
    (told,) = asked.saved(step, GPT(config), [list(zip(tokens[::2], tokens[1::2]))])
    assert told == saved.saved(config, batch, seq_len)


def test_a_run_is_judged_by_the_weights_that_it_left():
    torch.manual_seed(0)
    start, batches = GPT(training.TINY), training.micro_batches((20, 20))
    model = copy.deepcopy(start)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(10):
        step(model, optimizer, batches)
    before, after = training.validation_fell(model, start, batches, 0.1)
    assert after == training.evaluate(model, batches) < before == training.evaluate(start, batches)
    for wrong, id in ((start, "did-not-fall"), (GPT(GPTConfig.preset("nano")), "other-model")):
        with pytest.raises(Wrong) as found:
            training.validation_fell(wrong, start, batches, 0.1)
        assert found.value.id == id


@pytest.mark.parametrize("judge, wrong, id", [
    (training.trains, nothing, "does-not-train"),
    (lambda step: ledger.saves(step, (training.TINY, 2, 11)), held, "other-activations"),
    (lambda step: ledger.saves(step, (training.TINY, 2, 11)), nothing, "other-activations"),
])  # fmt: skip
def test_a_run_needs_a_step_that_works(judge, wrong, id):
    judge(step)
    with pytest.raises(Wrong) as found:
        judge(wrong)
    assert found.value.id == id


@pytest.mark.parametrize("judge", [training.gradients, training.returned])
def test_a_reply_about_fewer_calls_is_no_pass(judge, monkeypatch):
    taken = asked.taken
    monkeypatch.setattr(asked, "taken", lambda *what: taken(*what)[:2])
    with pytest.raises(Wrong) as found:
        judge(step, (3, 4))
    assert found.value.id == "broken-reply"
