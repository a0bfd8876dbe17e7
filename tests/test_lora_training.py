"""Training adapters: peft's steps, the loop of the course, and a base that stays as it was."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from peft import get_peft_model_state_dict
from torch.utils.checkpoint import checkpoint

from minigpt import lora
from minigpt.lora import KINDS
from minigpt.model import GPT, GPTConfig
from minigpt.train import TrainPlan, train
from tests.adapted import BATCHES, CLOSE, SIX, assert_frozen_unchanged, frozen, pair, peft_of, tiny


@pytest.mark.parametrize("kind", KINDS)
def test_ten_steps_of_adamw_equal_peft_and_leave_the_base_alone(kind):
    ours, theirs = pair(kind, moved=False)
    before = frozen(ours)
    start = {key: p.detach().clone() for key, p in lora.adapter_tensors(ours).items()}
    losses = {}
    for model in (ours, theirs):
        trained = [p for p in model.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=1e-2, weight_decay=0.1)
        losses[model] = []
        for step in range(10):
            loss = model(*BATCHES[step])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses[model].append(loss.item())
    assert losses[ours] == pytest.approx(losses[theirs], abs=1e-6)
    assert losses[ours][0] != losses[ours][9]
    expected = get_peft_model_state_dict(theirs)
    for key, p in lora.adapter_tensors(ours).items():
        torch.testing.assert_close(p, expected[key], **CLOSE)
        assert not torch.equal(p, start[key])
    assert_frozen_unchanged(ours, before)


def test_the_loop_trains_an_injected_model_and_resumes_it(tmp_path):
    plan = TrainPlan(steps=6, lr=1e-2, weight_decay=0.5, checkpoint_every=2, seed=7)

    def injected(seed: int = 0) -> GPT:
        model = tiny()
        lora.inject(model, 4, 8, SIX, "dora", dropout=0.1, generator=torch.Generator().manual_seed(seed))
        return model

    class Stopped(Exception):
        pass

    def stop(done, _):
        if done == 5:
            raise Stopped

    unbroken, path = injected(), tmp_path / "run.pt"
    before = frozen(unbroken)
    expected = train(unbroken, BATCHES, plan, progress=False)
    assert_frozen_unchanged(unbroken, before)
    with pytest.raises(Stopped):
        train(injected(), BATCHES, plan, progress=False, checkpoint=path, on_step=stop)
    resumed = injected(seed=1)
    history = train(resumed, BATCHES, plan, progress=False, checkpoint=path, resume=True)
    assert history.losses == expected.losses and len(history.losses) == 6
    for one, other in zip(unbroken.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(one, other)


def test_float32_adapters_train_on_a_16_bit_base():
    model = tiny().to(torch.bfloat16)
    lora.inject(model, 4, 8)
    before = frozen(model)
    train(model, BATCHES, TrainPlan(steps=2), progress=False)
    assert {p.dtype for p in lora.adapter_tensors(model).values()} == {torch.float32}
    assert_frozen_unchanged(model, before)


@pytest.mark.parametrize("library", ["ours", "peft"])
@pytest.mark.parametrize("reentrant", [True, False])
def test_adapters_that_a_reentrant_checkpoint_cuts_off_are_named(library, reentrant):
    """Over frozen embeddings the first two of three blocks learn nothing: 12 of 36 adapter tensors do."""
    torch.manual_seed(0)
    base = GPT(GPTConfig(n_layer=3, n_embd=32, n_head=2, context=32))
    if library == "peft":
        model = peft_of(base, "lora", SIX)
        blocks = model.base_model.model.blocks
    else:
        model = base
        lora.inject(model, 4, 8, SIX)
        blocks = model.blocks
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    for block in blocks[:2]:
        block.forward = partial(checkpoint, block.forward, use_reentrant=reentrant)
    assert len(names) == 36
    if not reentrant:
        assert len(train(model, BATCHES, TrainPlan(steps=2), progress=False).losses) == 2
        return
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    cut = ", ".join(names[:3])
    with pytest.raises(
        ValueError, match=f"24 of 36 trained parameters get no gradient: {cut} and 21 more; .*reentrant"
    ):
        train(model, BATCHES, TrainPlan(steps=2), progress=False)
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    blocks[2].forward = partial(checkpoint, blocks[2].forward, use_reentrant=True)
    with pytest.raises(ValueError, match="36 of 36 trained parameters get no gradient"):
        train(model, BATCHES, TrainPlan(steps=2), progress=False)
