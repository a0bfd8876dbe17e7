"""What alignment holds, against the meter, real modules, transformers' own cache, and trl's source."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch

from minigpt.alignment.reward import RewardModel
from minigpt.memory import Architecture, TrainingPlan, predict
from minigpt.memory.buckets import Ledger
from minigpt.memory.measured.alignment import measure_dpo
from minigpt.memory.predicted.alignment import rollouts
from minigpt.memory.predicted.alignment.copies import held, total
from minigpt.memory.predicted.alignment.dpo import predict_dpo
from minigpt.memory.preferences import check_dpo
from minigpt.model import GPT, GPTConfig

SMALL = GPTConfig(n_layer=2, n_embd=64, n_head=4, context=64, vocab_size=256)
TINY = dict(
    model_type="llama", vocab_size=256, hidden_size=64, intermediate_size=160, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256, tie_word_embeddings=False,
    bos_token_id=None, eos_token_id=None, pad_token_id=None,
)  # fmt: skip
BY_HAND = TrainingPlan(batch=2, seq_len=24)
TRL = TrainingPlan(batch=2, seq_len=24, loss="trl")
STEPS = [
    (SMALL, BY_HAND, "copy"),
    (SMALL, replace(BY_HAND, checkpointing="full", precision="bf16"), "precomputed"),
    (SMALL, replace(BY_HAND, method="lora"), "adapter"),
    (SMALL, replace(BY_HAND, method="lora", seq_len=60, precision="bf16"), "adapter"),
    (TINY, TRL, "copy"),
    (TINY, replace(TRL, precision="bf16-autocast", checkpointing="full"), "copy"),
    (TINY, replace(TRL, precision="bf16", optimizer="adamw8bit"), "precomputed"),
    ({**TINY, "vocab_size": 2000}, replace(TRL, batch=8, seq_len=100, optimizer="sgd"), "copy"),
    (TINY, TrainingPlan.like("trl-sft", method="lora", batch=2, seq_len=24), "adapter"),
    (TINY, TrainingPlan.like("trl-sft", method="qlora", batch=2, seq_len=24), "adapter"),
]


@pytest.mark.parametrize("model, plan, reference", STEPS)
def test_a_step_is_told_to_the_byte(model, plan, reference):
    asked = dict(reference=reference, prompt=8)
    predicted, measured = predict_dpo(model, plan, **asked), measure_dpo(model, plan, **asked)
    assert predicted.ledger == measured.ledger
    assert predicted.peak == measured.peak
    assert predicted.frozen == measured.frozen


def test_a_longer_prompt_costs_trl_less_and_by_hand_nothing_less():
    short, long = (predict_dpo(TINY, TRL, prompt=n).peak.total for n in (1, 20))
    assert long < short
    assert len({predict_dpo(SMALL, BY_HAND, prompt=n).peak.total for n in (1, 20)}) == 1


@pytest.mark.parametrize(
    "change, reference, says",
    [
        (dict(loss="model"), "copy", "loss is 'model'"),
        (dict(card="T4"), "copy", "card is 'T4'"),
        (dict(accumulation=2), "copy", "accumulation is 2"),
        (dict(sharding="fsdp2", ranks=2), "copy", "sharding is 'fsdp2'"),
        (dict(sequences="packed"), "copy", "sequences is 'packed'"),
        (dict(checkpointing="sqrt"), "copy", "checkpointing is 'sqrt'"),
        (dict(method="lora"), "copy", "reference is 'copy'; with method 'lora'"),
        (dict(method="lora", variant="dora"), "adapter", "variant is 'dora'"),
        (dict(method="lora", adapter_dtype="same"), "adapter", "adapter_dtype is 'same'"),
        (dict(method="qlora", quantization="int8", adapter_dtype="same"), "adapter", "quantization is 'int8'"),
        ({}, "adapter", "reference is 'adapter'; with method 'full'"),
        ({}, "ema", "reference is 'ema'"),
    ],
)
def test_what_is_not_covered_is_named(change, reference, says):
    for refuse in (predict_dpo, measure_dpo):
        with pytest.raises(ValueError, match=says):
            refuse(TINY, replace(TRL, **change), reference=reference)


def test_a_prompt_leaves_room_for_an_answer():
    with pytest.raises(ValueError, match="prompt is 24; it must be less than seq_len, which is 24"):
        check_dpo(TINY, TRL, "copy", 24)
    with pytest.raises(ValueError, match="precision is 'bf16-autocast'; MiniGPT"):
        check_dpo(SMALL, replace(BY_HAND, precision="bf16-autocast"), "copy", 1)


# ---------------------------------------------------------------- copies


def really(modules: dict[str, torch.nn.Module], trained: set[str]) -> dict[str, Ledger]:
    """The bytes of real modules, their gradients, and what torch's AdamW keeps of them."""
    found = {}
    for role, module in modules.items():
        weights = sum(p.nbytes for p in module.parameters())
        if role not in trained:
            found[role] = Ledger(weights=weights)
            continue
        for p in module.parameters():
            p.grad = torch.zeros_like(p)
        optimizer = torch.optim.AdamW(module.parameters())
        optimizer.step()
        state = sum(t.nbytes for kept in optimizer.state.values() for t in kept.values())
        found[role] = Ledger(weights=weights, gradients=weights, optimizer=state)
    return found


def test_ppo_holds_four_models():
    policy = GPT(SMALL)
    modules = {"policy": policy, "reference": copy.deepcopy(policy),
               "value": RewardModel(GPT(SMALL)), "reward": RewardModel(GPT(SMALL))}  # fmt: skip
    assert held(SMALL, BY_HAND, "ppo") == really(modules, {"policy", "value"})
    assert held(SMALL, BY_HAND, "reward") == really({"reward": modules["reward"]}, {"reward"})


def test_a_model_of_one_number_is_that_of_transformers():
    from transformers import AutoConfig, AutoModelForSequenceClassification

    config = AutoConfig.for_model(**TINY, num_labels=1)
    with torch.device("meta"):
        theirs = AutoModelForSequenceClassification.from_config(config, dtype=torch.bfloat16)
    whole = sum(p.nbytes for p in theirs.parameters()) + sum(b.nbytes for b in theirs.buffers())
    assert held(TINY, TrainingPlan(precision="bf16"), "ppo")["reward"] == Ledger(weights=whole)


def test_what_is_trained_costs_four_times_what_is_frozen():
    stays = held("llama-3.2-1b", TrainingPlan(), "dpo")
    assert stays["policy"].total == pytest.approx(4 * stays["reference"].total, rel=1e-3)
    assert total(held("llama-3.2-1b", TrainingPlan(), "grpo", reference=False)) == stays["policy"].total
    with pytest.raises(ValueError, match="optimizer is 'sgd'"):
        held(SMALL, TrainingPlan(optimizer="sgd"), "ppo")
    with pytest.raises(ValueError, match="method is 'rlhf'"):
        held(SMALL, TrainingPlan(), "rlhf")


def test_with_adapters_all_four_stand_on_one_base():
    plan = TrainingPlan(method="lora", precision="bf16", rank=8)
    stays = held(TINY, plan, "ppo")
    assert stays["reference"] == Ledger()
    base = sum(t.numel for t in Architecture.of(TINY).tensors()) * 2
    adapter = stays["policy"].gradients  # in float32, as its weights
    head = 4 * TINY["hidden_size"]
    assert stays["value"].weights == stays["reward"].weights == adapter + head
    assert stays["policy"].weights - adapter == pytest.approx(base, rel=1e-3)  # and its rotary table
    measured = predict_dpo(TINY, replace(plan, loss="trl", seq_len=24), reference="adapter").ledger
    assert stays["policy"].persistent == measured.persistent


# ---------------------------------------------------------------- rollouts


def test_the_cache_is_that_of_transformers():
    from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**TINY), dtype=torch.bfloat16)
    kept = DynamicCache(config=model.config)
    with torch.no_grad():
        model(torch.ones(3, 7, dtype=torch.int64), past_key_values=kept, use_cache=True)
        model(torch.ones(3, 1, dtype=torch.int64), past_key_values=kept, use_cache=True)
    whole = sum(layer.keys.nbytes + layer.values.nbytes for layer in kept.layers)
    assert rollouts.cache(TINY, 3, 8) == whole == 3 * 8 * 2 * 2 * 32 * 2
    assert rollouts.cache_per_token("llama-3-8b") == 131_072


@pytest.mark.parametrize("model, says", [(SMALL, "has no cache"), ("mistral-7b", "window is 4096")])
def test_a_cache_of_another_kind_is_refused(model, says):
    with pytest.raises(ValueError, match=says):
        rollouts.cache(model, 1, 1)


def test_logits_of_qwen_and_the_tile_that_trl_makes():
    assert rollouts.logits("qwen2.5-0.5b", 16, 1024) == 9_957_277_696
    from minigpt.memory.measured.trl_head import chunked_log_prob

    made = []
    function = chunked_log_prob()

    class Sizes(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, operation, types, arguments=(), options=None):
            out = operation(*arguments, **(options or {}))
            if isinstance(out, torch.Tensor):
                made.append(out.untyped_storage().nbytes())
            return out

    hidden, head = torch.randn(5, 4), torch.randn(40_000, 4)
    with Sizes():
        function.apply(hidden, head, None, torch.zeros(5, dtype=torch.int64), 1.0, 32_768, None, 1.0, ("entropy",))
    assert max(made) == max(rollouts.tile(5, itemsize=4), head.nbytes)
    assert rollouts.tile(100_000) == 4096 * 32_768 * 2


def test_a_step_of_sft_is_half_of_dpos_forward():
    """One sequence with gradients, or two: activations double, to within what is counted once."""
    one, two = predict(TINY, TRL).ledger.activations, predict_dpo(TINY, TRL).ledger.activations
    assert 1.7 < two / one < 2.0
