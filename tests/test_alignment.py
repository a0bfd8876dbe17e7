"""minigpt.alignment against brute force, against the model before its adapters, and against trl's own DPOTrainer."""

from __future__ import annotations

import copy
import math

import pytest
import torch

from minigpt.alignment.dpo import Pairs, dpo_loss, dpo_step, log_probabilities, of_reference
from minigpt.alignment.grpo import advantages, grpo_loss
from minigpt.alignment.reward import RewardModel, reward_loss
from minigpt.lora import idle, inject, merge
from minigpt.memory.measured.alignment import dpo_trainer, make_pairs, trl_batch
from minigpt.memory.plan import TrainingPlan
from minigpt.model import GPT, IGNORE, GPTConfig

SMALL = GPTConfig(n_layer=2, n_embd=32, n_head=2, context=16, vocab_size=40)
PLAN = TrainingPlan(batch=2, seq_len=12)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return GPT(SMALL)


@pytest.fixture
def pairs():
    torch.manual_seed(1)
    return make_pairs(SMALL.vocab_size, PLAN, prompt=5)


def shaken(model):
    """With adapters that do something."""
    inject(model, rank=2)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("lora_B"):
                parameter.normal_()
    return model


def test_a_pair_shares_its_prompt_and_counts_its_answers_alone(pairs):
    assert torch.equal(pairs.tokens[:2, :5], pairs.tokens[2:, :5])
    counted = pairs.targets != IGNORE
    assert counted.sum(1).tolist() == [7] * 4  # 12 tokens, 5 of them the prompt's
    assert torch.equal(pairs.targets[counted], pairs.tokens[:, 5:].flatten())


def test_log_probabilities_are_sums_over_the_answer(model, pairs):
    p = model(pairs.tokens).detach().double().softmax(-1)
    for i, found in enumerate(log_probabilities(model, pairs).tolist()):
        wanted = sum(math.log(p[i, t - 1, pairs.tokens[i, t]]) for t in range(5, 12))
        assert found == pytest.approx(wanted, rel=1e-5)


def test_the_loss_is_ln_2_where_the_policy_is_the_reference():
    same = torch.tensor([-3.0, -4.0, -5.0, -9.0])
    assert dpo_loss(same, same).item() == pytest.approx(math.log(2))
    moved = same + torch.tensor([1.0, 1.0, -2.0, 0.0])  # margins of 3 and 1
    wanted = sum(math.log1p(math.exp(-0.5 * margin)) for margin in (3, 1)) / 2
    assert dpo_loss(moved, same, beta=0.5).item() == pytest.approx(wanted)


def test_an_idle_adapter_is_the_model_before_it(model, pairs):
    before = log_probabilities(model, pairs)
    shaken(model)
    after = log_probabilities(model, pairs)
    assert not torch.allclose(before, after)
    assert torch.equal(of_reference(model, pairs, None), before.detach())
    assert torch.equal(log_probabilities(model, pairs), after)
    with pytest.raises(KeyError), idle(model):  # also after an error
        raise KeyError
    assert torch.equal(log_probabilities(model, pairs), after)
    merge(model)
    with pytest.raises(ValueError, match="merged already"), idle(model):
        pass


def test_without_adapters_and_without_a_copy_there_is_no_reference(model, pairs):
    with pytest.raises(ValueError, match="no adapters"):
        of_reference(model, pairs, None)
    for numbers in (torch.zeros(1), torch.zeros(2, 2)):  # torch would spread one number over all
        with pytest.raises(ValueError, match=r"reference has shape .*; it must be \(4,\)"):
            of_reference(model, pairs, numbers)
    with pytest.raises(ValueError, match="pairs has 3 sequences"):
        of_reference(model, Pairs(pairs.tokens[:3], pairs.targets[:3]), model)
    for beta in (0, -1, None, float("nan"), True):
        with pytest.raises(ValueError, match="beta is"):
            dpo_step(model, None, pairs, model, beta)


def test_steps_make_the_chosen_answer_likelier(model, pairs):
    reference = copy.deepcopy(model)
    margin = [t.clone() for t in reference.parameters()]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(8):
        optimizer.zero_grad()
        losses.append(dpo_step(model, optimizer, pairs, reference).item())
    assert losses[0] == pytest.approx(math.log(2), rel=1e-5) and losses[-1] < 0.5
    assert all(torch.equal(old, new) for old, new in zip(margin, reference.parameters(), strict=True))
    assert all(parameter.grad is None for parameter in reference.parameters())
    gain = (log_probabilities(model, pairs) - log_probabilities(reference, pairs)).view(2, 2)
    assert (gain[0] > gain[1]).all()


def test_a_reward_is_one_number_of_the_answers_end(model):
    rewards = RewardModel(model)
    tokens, last = torch.randint(0, 40, (4, 12)), torch.tensor([3, 11, 5, 7])
    found = rewards(tokens, last)
    assert found.shape == (4,)
    tokens[0, 4:] = 0  # after the end
    assert torch.allclose(rewards(tokens, last)[0], found[0], atol=1e-6)
    wanted = sum(math.log1p(math.exp(r - c)) for c, r in zip(found[:2].tolist(), found[2:].tolist(), strict=True)) / 2
    assert reward_loss(found).item() == pytest.approx(wanted, rel=1e-5)


def test_advantages_are_of_the_group():
    points = torch.tensor([0.0, 1.0, 1.0, 1.0, 5.0, 5.0, 5.0, 5.0])
    found = advantages(points, group=4)
    deviation = math.sqrt((0.75**2 + 3 * 0.25**2) / 3)
    assert found[0].item() == pytest.approx(-0.75 / (deviation + 1e-4))
    assert found[4:].tolist() == [0.0] * 4  # all the same: nothing to learn
    for group, text in ((1, "group is 1"), (3, "a multiple of group, 3")):
        with pytest.raises(ValueError, match=text):
            advantages(points, group)
    with pytest.raises(ValueError, match="points is torch.int64"):
        advantages(points.long(), 4)


def test_the_clipped_loss_stops_where_a_token_has_moved_enough():
    old = torch.zeros(1, 3)
    log_probs = torch.tensor([[0.0, 1.0, -1.0]], requires_grad=True)  # ratios 1, e, 1/e
    grpo_loss(log_probs, old, torch.tensor([2.0]), torch.ones(1, 3)).backward()
    assert log_probs.grad.tolist()[0] == pytest.approx([-2 / 3, 0, -2 / 3 * math.exp(-1)])
    with pytest.raises(ValueError, match="mask is 0 everywhere"):
        grpo_loss(log_probs, old, torch.tensor([2.0]), torch.zeros(1, 3))
    masked = grpo_loss(log_probs, old, torch.tensor([2.0]), torch.tensor([[1.0, 0.0, 0.0]]))
    assert masked.item() == pytest.approx(-2.0)


def test_loss_and_gradients_are_those_of_trl(tmp_path):
    """DPOTrainer on a tiny llama, through its chunked log-probabilities, whose two kernels are torch's here."""
    from minigpt.memory.measured.trl_head import trl_head
    from tests.test_alignment_memory import TINY

    torch.manual_seed(0)
    with trl_head():
        trainer = dpo_trainer({**TINY, "vocab_size": 40_000}, TrainingPlan(batch=2), "copy", str(tmp_path))
        inputs = trl_batch(trainer, TrainingPlan(batch=2, seq_len=12), prompt=5)
        with torch.no_grad():
            for parameter in trainer.model.parameters():
                parameter += 0.1 * torch.randn_like(parameter)
        theirs = trainer.compute_loss(trainer.model, inputs)
        theirs.backward()
    gradients = {name: p.grad.clone() for name, p in trainer.model.named_parameters()}
    trainer.model.zero_grad()
    tokens = inputs["input_ids"]
    targets = torch.full_like(tokens, IGNORE)
    targets[:, 4:-1] = tokens[:, 5:]
    pairs = Pairs(tokens, targets)
    policy, reference = (
        log_probabilities(lambda t, m=m: m(t).logits, pairs) for m in (trainer.model, trainer.ref_model)
    )
    ours = dpo_loss(policy, reference.detach())
    ours.backward()
    assert ours.item() != pytest.approx(math.log(2), rel=1e-2)
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-5)
    for name, parameter in trainer.model.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[name], rtol=1e-3, atol=1e-6)
