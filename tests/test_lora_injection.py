"""Which layers get adapters, what is refused, and merging them all, with peft as the judge."""

from __future__ import annotations

import math

import pytest
import torch
from peft import get_peft_model_state_dict
from torch import nn

from minigpt import lora
from minigpt.lora import KINDS, LoRALinear
from minigpt.train import TrainPlan, train
from tests.adapted import BATCHES, CONFIG, SIX, assert_frozen_unchanged, frozen, pair, peft_of, tiny


def test_all_linear_takes_the_blocks_and_never_the_tied_head():
    model = tiny()
    names = lora.inject(model, 4, targets="all-linear")
    assert names == [f"blocks.{i}.{part}" for i in range(2) for part in [
        "attn.q_proj", "attn.k_proj", "attn.v_proj", "attn.o_proj", "mlp.up_proj", "mlp.down_proj"]]  # fmt: skip
    for layer in lora.adapters(model).values():
        nn.init.normal_(layer.lora_B)
    before = model.token_embedding.weight.clone()
    lora.merge(model)
    assert torch.equal(model.token_embedding.weight, before) and model.lm_head.weight is model.token_embedding.weight

    both = "token_embedding.weight and lm_head.weight are one tensor, and merging would change both"
    with pytest.raises(ValueError, match=f"targets has 'lm_head', but lm_head is tied: {both}; allowed: 'all-linear'"):
        lora.inject(tiny(), 4, targets=["q_proj", "lm_head"])
    untied = tiny()
    untied.lm_head.weight = nn.Parameter(untied.lm_head.weight.detach().clone())
    assert lora.inject(untied, 4, targets=["lm_head"]) == ["lm_head"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(rank=0), r"rank is 0; it must be an integer from 1 to 32 for blocks.0.attn.q_proj, which is 32 x 32"),
        (dict(rank=-1), "rank is -1"),
        (dict(rank=True), "rank is True"),
        (dict(rank=2.0), "rank is 2.0"),
        (dict(rank=33, targets=["down_proj"]), "rank is 33; .* from 1 to 32 for blocks.0.mlp.down_proj, .* 32 x 128"),
        (dict(alpha=0), "alpha is 0; it must be a number above 0"),
        (dict(alpha=math.nan), "alpha is nan"),
        (dict(alpha="16"), "alpha is '16'"),
        (dict(alpha=True), "alpha is True"),
        (dict(dropout=False), "dropout is False"),
        (dict(generator=5), "generator is 5; it must be a torch.Generator, or None"),
        (dict(kind="LoRA"), "kind is 'LoRA'; allowed: lora, rslora, dora"),
        (dict(dropout=1.0), "dropout is 1.0; it must be a number of at least 0 and below 1"),
        (dict(adapter_dtype=torch.int8), "adapter_dtype is torch.int8; it must be a floating-point"),
        (dict(targets="q_proj"), "targets is 'q_proj'; allowed: 'all-linear', or a list of q_proj, k_proj"),
        (dict(targets=[]), r"targets is \[\]"),
        (dict(targets=["q_proj", "query"]), "targets has 'query', but no layer has that name; .* q_proj, k_proj"),
        (dict(targets=["proj"]), "targets has 'proj', but no layer has that name"),
        (dict(targets=["attn"]), "targets has 'attn', but blocks.0.attn is not a linear layer .Attention.; allowed"),
        (dict(targets=["token_embedding"]), "token_embedding is not a linear layer .Embedding."),
    ],
)
def test_what_is_not_allowed_is_named_and_leaves_the_model_as_it_was(options, message):
    model = tiny()
    with pytest.raises(ValueError, match=message):
        lora.inject(model, **options)
    assert lora.trainable_parameters(model) == lora.trainable_parameters(tiny())
    assert not any(isinstance(module, LoRALinear) for module in model.modules())
    if options.keys() <= {"rank", "targets", "kind"}:
        with pytest.raises(ValueError, match="rank is|targets|kind is"):
            lora.adapter_parameters(CONFIG, **options)


def test_a_model_takes_adapters_once():
    model = tiny()
    lora.inject(model, 4, targets=["q_proj"])
    with pytest.raises(ValueError, match="model has an adapter at blocks.0.attn.q_proj already"):
        lora.inject(model, 4, targets=["v_proj"])


@pytest.mark.parametrize("asked", [torch.float32, None])
def test_the_type_of_adapters_is_that_of_peft(asked):
    base = tiny().to(torch.bfloat16)
    theirs = get_peft_model_state_dict(peft_of(base, "dora", SIX, autocast_adapter_dtype=asked is not None))
    lora.inject(base, 4, 8, SIX, "dora", adapter_dtype=asked)
    for key, p in lora.adapter_tensors(base).items():
        assert p.dtype == theirs[key].dtype == (asked or torch.bfloat16)
        if "magnitude" in key:
            assert torch.equal(p, theirs[key])


@pytest.mark.parametrize(("dtype", "logits_rounding"), [(torch.float32, 1e-5), (torch.bfloat16, 0.03)])
@pytest.mark.parametrize("kind", KINDS)
def test_merged_weights_equal_peft_and_unmerging_returns_them(kind, dtype, logits_rounding):
    ours, theirs = pair(kind, tiny().to(dtype))
    tokens, targets = BATCHES[0]
    step = torch.finfo(dtype).eps
    weights = frozen(ours)
    apart, plain = ours(tokens), tiny().to(dtype)(tokens)
    assert (apart - plain).norm() > 0.2 * plain.norm()
    lora.merge(ours)
    merged = frozen(ours)
    theirs.merge_adapter()
    for name, module in ours.named_modules():
        if isinstance(module, LoRALinear):
            expected = theirs.get_submodule(f"base_model.model.{name}.base_layer").weight
            torch.testing.assert_close(module.base.weight, expected, rtol=step, atol=1e-6)
            assert not torch.equal(expected, weights[f"{name}.base.weight"])
    assert (ours(tokens) - apart).norm() < logits_rounding * apart.norm()
    with pytest.raises(ValueError, match="no parameter with requires_grad"):
        train(ours, BATCHES, TrainPlan(steps=1), progress=False)
    lora.unmerge(ours)
    after = frozen(ours)
    assert after.keys() == weights.keys()
    for name, weight in weights.items():
        rounding = 2 * step * merged[name].abs().max().item()  # at the size of W', not at that of W
        torch.testing.assert_close(after[name], weight, rtol=0, atol=rounding)
    assert (ours(tokens) - apart).norm() < logits_rounding * apart.norm()
    ours(tokens, targets).backward()
    assert all(p.grad is not None for p in lora.adapter_tensors(ours).values())


def test_merging_twice_or_unmerging_what_is_not_merged_is_refused():
    model = tiny()
    with pytest.raises(ValueError, match="model has no adapters; it must be one that inject"):
        lora.merge(model)
    names = lora.inject(model, 4)
    with pytest.raises(ValueError, match=f"the adapter of {names[0]} is not merged"):
        lora.unmerge(model)
    lora.merge(model)
    before = frozen(model)
    with pytest.raises(ValueError, match=f"the adapter of {names[0]} is merged already"):
        lora.merge(model)
    assert_frozen_unchanged(model, before)
    model.get_submodule(names[0]).unmerge()
    with pytest.raises(ValueError, match=f"the adapter of {names[1]} is merged already"):
        lora.merge(model)
    assert not model.get_submodule(names[0]).merged  # all or none
    with pytest.raises(ValueError, match="this layer is not merged"):
        model.get_submodule(names[0]).unmerge()
