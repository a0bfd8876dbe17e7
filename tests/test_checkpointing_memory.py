"""Checkpointing policies, predicted and measured: to the byte, on real and on fake tensors, with and without a card."""

import gc
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from minigpt import checkpointing
from minigpt.memory import Architecture, TrainingPlan, measure, predict
from minigpt.memory.engine.tape import Tape
from minigpt.memory.measured.building import build
from minigpt.memory.measured.fakes import fake_tensors
from minigpt.memory.measured.optimizers import make_optimizer
from minigpt.memory.measured.step import make_batch, measure_module, training_step
from minigpt.memory.predicted.flops import block_flops, flops, head_flops
from minigpt.memory.predicted.run import run
from minigpt.memory.saved import saved_by_block
from minigpt.memory.segments import segments
from minigpt.memory.units import KIB
from minigpt.model import GPT, GPTConfig
from tests.profiled import profiled_peak
from tests.test_flops import counted
from tools.fuzz_case import quantities
from tools.models import MODELS

SIZES = dict(batch=2, seq_len=24)
POLICIES = ("every", "sqrt", "selective", "offload")
WORDS = {
    "autocast, accumulated": dict(precision="bf16-autocast", accumulation=2),
    "lora": dict(method="lora", precision="bf16", lora_dropout=0.05),
    "qlora": dict(method="qlora", precision="bf16", autocast=True),
}


@pytest.mark.parametrize("words", WORDS.values(), ids=WORDS)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", ["minigpt-nano", "llama-ungrouped"])
def test_every_policy_is_predicted_to_the_byte(name, policy, words):
    plan = TrainingPlan(**SIZES, **words, checkpointing=policy)
    assert quantities(predict(MODELS[name], plan)) == quantities(measure(MODELS[name], plan, "cpu"))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", ["minigpt-nano", "llama-ungrouped"])
def test_a_large_model_is_too(name, policy):
    plan = TrainingPlan(batch=4, seq_len=256, precision="bf16", checkpointing=policy, every_n_layers=3)
    assert quantities(predict(MODELS[name], plan)) == quantities(measure(MODELS[name], plan))


class WithCard(Tape):
    """A CPU's kernels, but with the CPU's memory apart from the model's."""

    def __init__(self, *options, **more) -> None:
        super().__init__(*options, **more)
        self.counts_host = False


@pytest.mark.parametrize("words", [dict(), dict(method="lora", precision="bf16")], ids=["full", "lora"])
@pytest.mark.parametrize("name", ["minigpt-nano", "llama-ungrouped"])
def test_offloaded_inputs_are_not_on_the_card(name, words, monkeypatch):
    """The copies lie on the meta device here, whose tensors the meter does not count, as a card's would not."""
    plan = TrainingPlan(**SIZES, **words, checkpointing="offload")
    monkeypatch.setattr(checkpointing, "HOST", torch.device("meta"))
    expected = run(MODELS[name], plan, Tape.result, WithCard)
    assert quantities(expected) == quantities(measure(MODELS[name], plan))
    monkeypatch.undo()
    with_copies, full = predict(MODELS[name], plan), predict(MODELS[name], replace(plan, checkpointing="full"))
    assert expected.ledger.activations == with_copies.ledger.activations < full.ledger.activations


@pytest.mark.parametrize("policy", ["full", *POLICIES])
@pytest.mark.parametrize(
    "name, words", [("minigpt-nano", dict()), ("llama-ungrouped", dict(method="lora", precision="bf16", targets="q,v"))]
)
def test_torchs_profiler_sees_the_same_peak(name, policy, words):
    """Without the meter; beside it each checkpoint holds the state of random numbers, 5,056 bytes."""
    plan = TrainingPlan(batch=4, seq_len=128, optimizer="sgd", checkpointing=policy, **words)
    module = build(MODELS[name], plan)
    optimizer, batch = make_optimizer(module, plan), make_batch(module, plan)
    standing = sum(tensor.untyped_storage().nbytes() for tensor in (*module.parameters(), *module.buffers()))
    given = sum(tensor.nbytes for tensor in batch.tensors())
    gc.collect()  # a block and what stands in for its forward hold each other: those of the last test would die now
    profiled = profiled_peak(lambda: training_step(module, optimizer, batch, plan))
    states = 5056 * len(segments(policy, Architecture.of(MODELS[name]).n_layer))
    assert 0 <= profiled - (predict(MODELS[name], plan).peak.total - standing - given) <= states + KIB


def test_transformers_own_call_gives_the_same_bytes():
    plan = TrainingPlan(**SIZES, method="lora", precision="bf16")
    ways = {
        "every": dict(every_n_layers=2),
        "selective": dict(
            gradient_checkpointing_kwargs=dict(use_reentrant=False, context_fn=checkpointing.selective_contexts)
        ),
        "full": dict(),
    }
    for word, options in ways.items():
        with fake_tensors(plan):
            module = build(MODELS["llama-ungrouped"], plan, "fake")
            module.gradient_checkpointing_enable(**options)
            theirs = measure_module(module, plan)
        assert quantities(theirs) == quantities(predict(MODELS["llama-ungrouped"], replace(plan, checkpointing=word)))


def test_what_each_policy_keeps_of_a_block():
    """A MiniGPT block's input, (2, 24, 128) of float32, is 24,576 bytes; selective keeps every product beside it."""
    kept = {
        word: [saved_by_block(MODELS["minigpt-nano"], TrainingPlan(**SIZES, checkpointing=word), i) for i in range(4)]
        for word in ("none", "full", "sqrt", "selective", "every")
    }
    stream = 2 * 24 * 128 * 4
    sizes = {word: [sum(tensor.counted for tensor in block) for block in blocks] for word, blocks in kept.items()}
    assert sizes["full"] == [stream] * 4
    assert sizes["sqrt"] == [stream, 0, stream, 0]
    assert sizes["every"][0] == stream and sizes["every"][1] == sizes["none"][1]
    products = (3 + 1 + 1 + 4 + 1) * stream + 2 * 24 * 4 * 4  # q, k, v, attention, o, up, down; a log-sum-exp per head
    assert sizes["selective"] == [stream + products] * 4


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    "name, words", [("minigpt-nano", dict()), ("llama-ungrouped", dict(method="lora", precision="bf16"))]
)
def test_the_work_of_every_policy_is_what_torch_counts(name, policy, words):
    plan = TrainingPlan(**SIZES, **words, checkpointing=policy)
    found = flops(MODELS[name], plan)
    assert counted(MODELS[name], plan) == (found.forward, found.again + found.backward)


def test_how_much_each_policy_runs_again():
    """MiniGPT, full fine-tuning: per block without its last matrix, unless another block of its segment follows."""
    model, words = MODELS["minigpt-nano"], dict(batch=1, seq_len=64)
    again = {
        word: flops(model, TrainingPlan(**words, checkpointing=word)).again
        for word in ("none", "full", "reentrant", "every", "sqrt", "selective", "offload")
    }
    plan = TrainingPlan(**words)
    block, last = block_flops(model, plan), 2 * 64 * 128 * 512
    assert again["none"] == again["selective"] == 0
    assert again["full"] == again["offload"] == 4 * (block - last)
    assert again["reentrant"] == 4 * block
    assert again["every"] == again["full"] / 2
    assert again["sqrt"] == 4 * block - 2 * last
    assert flops(model, plan).forward == 4 * block + head_flops(model, plan)


def test_what_is_not_predicted_is_named():
    with pytest.raises(ValueError, match="checkpointing is 'sqrt'; a gpt2's blocks differ, or return more than a"):
        predict(MODELS["gpt2"], TrainingPlan(checkpointing="sqrt"))
    with pytest.raises(ValueError, match="checkpointing is 'selective'; the mask of attention without a fused kernel"):
        predict(MODELS["llama-dropout"], TrainingPlan(checkpointing="selective"))
    with pytest.raises(ValueError, match="every_n_layers is 0; it must be an integer of at least 1"):
        TrainingPlan(checkpointing="every", every_n_layers=0)
    if torch.cuda.is_available():
        with pytest.raises(ValueError, match="checkpointing is 'offload'; on a GPU the meter would count"):
            measure(MODELS["minigpt"], TrainingPlan(checkpointing="offload"), "cuda")


class Wrapped(nn.Module):
    """Blocks in a row, under one checkpoint."""

    def __init__(self, *blocks):
        super().__init__()
        self.blocks = nn.Sequential(*blocks)

    def forward(self, x):
        return checkpoint(self.blocks, x, use_reentrant=False)


def nested(runs: list | None = None) -> GPT:
    """16 blocks in 4 rows under a checkpoint each, each block under one of its own; ``runs`` notes which begin."""
    model = GPT(GPTConfig(n_layer=16, n_embd=96, n_head=3))
    for i, block in enumerate(model.blocks):
        block.register_forward_pre_hook(lambda *_, i=i: None if runs is None else runs.append(i))
    blocks = [Wrapped(block) for block in model.blocks]
    model.blocks = nn.ModuleList(Wrapped(*blocks[i : i + 4]) for i in range(0, 16, 4))
    return model


@pytest.mark.parametrize(("batch", "said"), [(32, 27), (8, 31)])
def test_a_checkpoint_inside_of_a_checkpoint_takes_what_lesson_06_answers(batch, said):
    peak = measure_module(nested(), TrainingPlan(batch=batch, seq_len=256, optimizer="sgd")).peak
    assert round((peak.total - peak.weights) / (4 * batch * 256 * 96)) == said


def test_each_block_but_the_last_of_its_row_runs_three_times_there():
    runs, words = [], torch.zeros(1, 8, dtype=torch.int64)
    nested(runs)(words, words).backward()
    assert [runs.count(i) for i in range(16)] == 4 * [3, 3, 3, 2]
