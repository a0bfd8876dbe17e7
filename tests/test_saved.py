"""What a block keeps, against two oracles: the prediction without the list, and torch's own saved-tensor hooks."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from minigpt.memory import Architecture, TrainingPlan, predict
from minigpt.memory.saved import saved, saved_by_block
from tools.models import MODELS, llama

PLANS = {
    "full": dict(),
    "bf16": dict(precision="bf16"),
    "autocast": dict(precision="bf16-autocast"),
    "lora": dict(method="lora", precision="bf16"),
    "dora": dict(method="lora", variant="dora"),
    "qlora": dict(method="qlora", precision="bf16"),
    "checkpointed": dict(checkpointing="full"),
    "reentrant": dict(checkpointing="reentrant"),
    "accumulated": dict(accumulation=2),
}


def when_forward_ends(model, plan) -> int:
    forward = [
        ledger for phase, ledger in predict(model, replace(plan, accumulation=1)).timeline() if phase == "forward"
    ]
    return forward[-1].activations


@pytest.mark.parametrize("name", MODELS)
def test_the_parts_add_up_to_the_predicted_activations(name):
    """Of every family and method, or it is refused by both."""
    counted = 0
    for options in PLANS.values():
        plan = TrainingPlan(batch=2, seq_len=16, **options)
        try:
            expected = when_forward_ends(MODELS[name], plan)
        except ValueError as refused:
            with pytest.raises(ValueError, match=str(refused)[:12]):
                saved(MODELS[name], plan)
            continue
        parts = saved(MODELS[name], plan)
        assert sum(one.counted for part in parts.values() for one in part) == expected, options
        counted += 1
    assert counted >= 5


@pytest.mark.parametrize("options", PLANS.values(), ids=list(PLANS))
def test_one_block_more_adds_what_its_list_says(options):
    plan = TrainingPlan(batch=2, seq_len=32, **options)
    two, three = (llama(num_hidden_layers=n) for n in (2, 3))
    more = when_forward_ends(three, plan) - when_forward_ends(two, plan)
    assert sum(one.counted for one in saved_by_block(three, plan)) == more > 0


@pytest.mark.parametrize("precision", ("fp32", "bf16"))
@pytest.mark.parametrize("name", ("minigpt", "llama-grouped", "llama-ungrouped"))
def test_torch_saves_the_same_storages_in_every_block(name, precision):
    from minigpt.memory.measured.building import build

    plan = TrainingPlan(batch=2, seq_len=16, precision=precision)
    model = build(MODELS[name], plan, "cpu")
    theirs = torch_saves(model, plan)
    groups = saved(MODELS[name], plan)
    ours = [Counter(one.nbytes for one in groups[part] if one.counted) for part in groups if part != "outside"]
    assert theirs == ours and len(ours) == Architecture.of(MODELS[name]).n_layer


def torch_saves(model, plan) -> list[Counter]:
    """How many storages of which size each block saves first, asked from torch; parameters are left out."""
    import torch
    from torch.autograd.graph import saved_tensors_hooks

    parameters = {p.untyped_storage().data_ptr() for p in model.parameters()}
    seen: dict[int, torch.UntypedStorage] = {}  # held, so that no address is used again
    blocks, here = list(getattr(model, "blocks", None) or model.model.layers), []

    def note(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters and storage.data_ptr() not in seen:
            seen[storage.data_ptr()] = storage
            if here:
                here[-1][storage.nbytes()] += 1
        return tensor

    found: list[Counter] = []
    for block in blocks:
        block.register_forward_pre_hook(lambda *_: (found.append(Counter()), here.append(found[-1])) and None)
        block.register_forward_hook(lambda *_: here.clear())
    tokens = torch.randint(0, 100, (plan.batch, plan.seq_len))
    with saved_tensors_hooks(note, lambda tensor: tensor):
        if hasattr(model, "blocks"):
            model(tokens, tokens)
        else:
            model(input_ids=tokens, labels=tokens, use_cache=False)
    return found


def test_operations_have_the_names_of_their_parameters():
    plan = TrainingPlan(batch=2, seq_len=16)
    rows = saved_by_block(MODELS["minigpt"], plan)
    assert ("linear q", "linear k", "linear v") in [one.by for one in rows]
    assert [one.made_by for one in rows if one.by == ("linear down",)] == [("block 2", "gelu")]
    lora = saved_by_block(MODELS["minigpt"], replace(plan, method="lora", precision="bf16"))
    assert {f"linear {name}.A" for name in "qkvo"} <= {by for one in lora for by in one.by}


def test_a_table_that_all_blocks_share_counts_in_the_first():
    plan = TrainingPlan(batch=2, seq_len=16)
    first, last = (saved_by_block(MODELS["llama-grouped"], plan, block) for block in (0, -1))
    shared = [one for one in last if one.elsewhere]
    assert {one.elsewhere for one in shared} == {("block 0", "block 1")} and len(shared) == 2
    assert sum(one.counted for one in first) - sum(one.counted for one in last) == sum(one.nbytes for one in shared)


@pytest.mark.parametrize("block", (3, -2))
def test_a_block_that_is_not_there_is_refused(block):
    with pytest.raises(ValueError, match=rf"block is {block}; allowed: -1 \(the last\), or 0 to 2"):
        saved_by_block(MODELS["minigpt"], TrainingPlan(), block)
