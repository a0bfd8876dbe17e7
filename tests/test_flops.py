"""FLOPs: the tape's count against torch's FlopCounterMode on a real step, and against the formulas."""

from math import prod

import bitsandbytes  # noqa: F401  registers its operations
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from minigpt.memory import Architecture, TrainingPlan
from minigpt.memory.measured.building import build
from minigpt.memory.measured.optimizers import make_optimizer
from minigpt.memory.measured.step import make_batch, training_step
from minigpt.memory.predicted.flops import block_flops, flops, head_flops
from minigpt.model import GPTConfig
from tools.models import MODELS

WORDS = {
    "plain": dict(),
    "full": dict(checkpointing="full"),
    "full, eager": dict(checkpointing="full", attention="eager"),
    "full, autocast, accumulated": dict(checkpointing="full", precision="bf16-autocast", accumulation=2),
    "reentrant": dict(checkpointing="reentrant"),
    "lora": dict(method="lora", checkpointing="full"),
    "qlora": dict(method="qlora", precision="bf16", checkpointing="full"),
    "dora": dict(method="lora", variant="dora"),
}
OTHERS = ("gpt2", "qwen2-tied", "gemma2", "olmo2", "bloom", "falcon")


def attention(q, k, v, *_, out_shape=None, **__):
    return sdpa_flop_count(q, k, v)


def attention_backward(g, q, k, v, *_, out_shape=None, **__):
    return sdpa_backward_flop_count(g, q, k, v)


def four_bits(x, weight, shape, *_, out_shape=None, **__):
    return 2 * prod(x) * shape[0]


UNKNOWN = {  # operations that torch's counter has no formula for
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: attention,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: attention_backward,
    torch.ops.bitsandbytes.gemm_4bit: four_bits,
}


def counted(model, plan):
    """FLOPs of forward and of backward, by torch."""
    module = build(model, plan, "cpu")
    optimizer, batch = make_optimizer(module, plan), make_batch(module, plan)
    counter, found, now = FlopCounterMode(display=False, custom_mapping=UNKNOWN), {"forward": 0, "backward": 0}, [""]

    def mark(phase):
        if now[0] in found:
            found[now[0]] += counter.get_total_flops() - sum(found.values())
        now[0] = phase

    with counter:
        training_step(module, optimizer, batch, plan, mark)
    return found["forward"], found["backward"]


def assert_counted(name, words):
    plan = TrainingPlan(batch=2, seq_len=24, **words)
    found = flops(MODELS[name], plan)
    assert counted(MODELS[name], plan) == (found.forward, found.again + found.backward)
    if words.get("variant") != "dora":
        architecture = Architecture.of(MODELS[name])
        one_pass = architecture.n_layer * block_flops(architecture, plan) + head_flops(architecture, plan)
        turning = architecture.head_dim * plan.seq_len if name != "minigpt" else 0  # rotary frequencies times positions
        assert found.forward == plan.accumulation * (one_pass + turning)
    return found


@pytest.mark.parametrize("words", WORDS.values(), ids=WORDS)
@pytest.mark.parametrize("name", ["minigpt", "llama-grouped"])
def test_a_step_does_what_torch_counts(name, words):
    if name == "minigpt" and words.get("checkpointing") == "reentrant":
        words = dict(words, precision="bf16")
    assert_counted(name, words)


@pytest.mark.parametrize("name", OTHERS)
def test_other_families_do_too(name):
    plan = TrainingPlan(batch=2, seq_len=24, checkpointing="full", method="lora")
    found = flops(MODELS[name], plan)
    assert counted(MODELS[name], plan) == (found.forward, found.again + found.backward)


def test_full_checkpointing_is_nearly_one_forward_more():
    """Of a large model: a third of the step for full fine-tuning, a half for LoRA, less what is not run again."""
    model = "llama-7b"
    plain, full = (flops(model, TrainingPlan(seq_len=512, checkpointing=words)) for words in ("none", "full"))
    C, I, V = 4096, 11008, 32000  # noqa: E741
    last, head = 32 * 2 * 512 * C * I, 2 * 512 * C * V
    turning = 128 * 512
    assert full.again == plain.forward - head - last - turning
    assert (full.forward, full.backward) == (plain.forward, plain.backward)
    assert 0.25 < full.extra < 1 / 3
    lora = flops(model, TrainingPlan(seq_len=512, method="lora", targets="q,v", precision="bf16", checkpointing="full"))
    assert 0.37 < lora.extra < 1 / 2
    assert flops(model, TrainingPlan(seq_len=512, checkpointing="reentrant")).again == full.again + last


def test_frozen_weights_have_no_gradients_of_their_own():
    model = GPTConfig.preset("small")
    full, lora = (flops(model, TrainingPlan(method=method, rank=1)) for method in ("full", "lora"))
    assert 2.0 < full.backward / full.forward < 2.05  # attention's is 2.5
    assert 1.0 < lora.backward / lora.forward < 1.1


def test_four_bits_are_made_whole_for_every_product():
    """On a GPU: forward, second run, backward. On a CPU forward reads codes. An adapter's B comes last of all."""
    words = dict(method="qlora", precision="bf16", seq_len=64, checkpointing="full")
    weights = Architecture.of("llama-7b").linear_parameters
    last = 32 * 4096 * 11008
    assert flops("llama-7b", TrainingPlan(card="T4", **words)).decoded == 3 * weights
    assert flops("llama-7b", TrainingPlan(card="T4", targets="q,v", **words)).decoded == 3 * weights - last
    assert flops("llama-7b", TrainingPlan(**words)).decoded == weights


def test_mixtures_are_refused():
    with pytest.raises(ValueError, match="the model is a mixtral, whose experts' products are not counted"):
        flops(MODELS["mixtral"], TrainingPlan())
