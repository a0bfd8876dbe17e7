"""FLOPs: the tape's count against torch's FlopCounterMode on a real step, and against the formulas."""

from dataclasses import replace
from math import prod

import bitsandbytes  # noqa: F401  registers its operations
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from minigpt import checkpointing
from minigpt.memory import Architecture, TrainingPlan, predict
from minigpt.memory.measured.building import build
from minigpt.memory.measured.optimizers import make_optimizer
from minigpt.memory.measured.step import make_batch, training_step
from minigpt.memory.predicted.flops import block_flops, flops, head_flops, priced
from minigpt.model import GPTConfig
from tools.models import MIXTURES, MODELS

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


def grouped(x, weight, *_, out_shape=None, **__):
    """Rows (S, n) times their expert's (E, n, m); or, for the weight's gradient, (n, S) times (S, m)."""
    return 2 * x[0] * x[1] * weight[-1]


UNKNOWN = {  # operations that torch's counter has no formula for
    torch.ops.aten._grouped_mm: grouped,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: attention,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: attention_backward,
    torch.ops.bitsandbytes.gemm_4bit: four_bits,
}


def counted(model, plan, experts=None):
    """FLOPs of forward and of backward, by torch. ``experts``: another implementation than transformers' default."""
    module = build(model, plan, "cpu")
    if experts:
        module.set_experts_implementation(experts)
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


@pytest.mark.parametrize("method", ["full", "lora"])
def test_a_loss_that_never_makes_all_logits_multiplies_as_much(method):
    plans = {loss: TrainingPlan(method=method, seq_len=33, loss=loss) for loss in ("model", "chunked", "fused", "trl")}
    model = MODELS["llama-grouped"]
    found, head = {loss: flops(model, plan) for loss, plan in plans.items()}, head_flops(model, plans["trl"])
    assert found["model"] == found["chunked"] == found["fused"]
    last = head // 33  # trl asks nothing of the last token, and makes the others' logits again
    assert found["trl"].forward == found["model"].forward - last
    times = 2 if method == "full" else 1  # gradients of the head: the frozen one has its input's alone
    assert found["trl"].backward == found["model"].backward - times * last + head - last


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


EXPERTS = {
    "plain": dict(),
    "full": dict(checkpointing="full"),
    "selective": dict(checkpointing="selective"),
    "lora on experts": dict(method="lora", checkpointing="full", attention="eager"),
    "lora on attention": dict(method="lora", targets="o"),
    "qlora": dict(method="qlora", precision="bf16", targets="o"),
}


@pytest.mark.parametrize("words", EXPERTS.values(), ids=EXPERTS)
@pytest.mark.parametrize("name", ["mixtral", "qwen2-moe", "gpt-oss", "deepseek-v3"])
def test_a_mixture_does_what_torch_counts(name, words):
    """Also where the router sends few or many tokens to one expert: the count is that of the experts taken."""
    plan = TrainingPlan(batch=2, seq_len=24, **words)
    if name == "gpt-oss" and plan.checkpointing == "selective":
        with pytest.raises(ValueError, match="the bias of experts is added in place"):
            flops(MODELS[name], plan)
        return
    found = flops(MODELS[name], plan)
    assert counted(MODELS[name], plan) == (found.forward, found.again + found.backward)


@pytest.mark.parametrize("name", MIXTURES)
def test_experts_one_by_one_are_as_many_products(name, monkeypatch):
    """transformers' loop over the experts is made of linear layers, for which torch has formulas of its own."""
    plan = TrainingPlan(batch=2, seq_len=24, attention="eager")
    monkeypatch.delitem(UNKNOWN, torch.ops.aten._grouped_mm)
    found = flops(MODELS[name], plan)
    assert counted(MODELS[name], plan, experts="eager") == (found.forward, found.backward)


@pytest.mark.parametrize("name", ["mixtral", "qwen2-moe", "qwen3-moe"])
def test_the_formula_of_a_mixture(name):
    plan = TrainingPlan(batch=2, seq_len=24, method="lora", targets="q,v")
    architecture = Architecture.of(MODELS[name])
    blocks = sum(block_flops(architecture, plan, i) for i in range(architecture.n_layer))
    turning = architecture.head_dim * plan.seq_len
    assert flops(architecture, plan).forward == blocks + head_flops(architecture, plan) + turning
    with pytest.raises(ValueError, match="targets is 'all-linear'; .* has an adapter that no formula here covers"):
        block_flops(MODELS["mixtral"], TrainingPlan(method="lora"))


def test_a_mixture_computes_with_few_of_its_weights():
    """Mixtral's 47 billion parameters do the work of 13: two of eight experts."""
    architecture, plan = Architecture.of(MODELS["mixtral"]), TrainingPlan(batch=2, seq_len=24)
    experts = sum(prod(t.shape) for t in architecture.tensors() if t.kind == "experts")
    work = {k: flops(dict(MODELS["mixtral"], num_experts_per_tok=k), plan).forward for k in (1, 2, 8)}
    assert work[2] - work[1] == 2 * plan.tokens * experts // 8
    assert work[8] - work[1] == 7 * (work[2] - work[1])


def test_memory_and_work_come_from_one_run():
    plan = TrainingPlan(batch=2, seq_len=24, checkpointing="full")
    step, work = priced(MODELS["llama-grouped"], plan)
    assert step.peak == predict(MODELS["llama-grouped"], plan).peak and work == flops(MODELS["llama-grouped"], plan)


@pytest.mark.parametrize("words", [dict(), dict(precision="bf16-autocast"), dict(accumulation=3), dict(method="lora")])
@pytest.mark.parametrize("name", ["minigpt", "llama-grouped", "gpt2"])
def test_offloading_moves_each_blocks_input(name, words, monkeypatch):
    """The copies that are really made, by their bytes."""
    sent, copy = [], checkpointing._to_host
    monkeypatch.setattr(checkpointing, "_to_host", lambda x: sent.append(x.nbytes) or copy(x))
    plan = TrainingPlan(batch=2, seq_len=24, checkpointing="offload", **words)
    counted(MODELS[name], plan)
    assert flops(MODELS[name], plan).moved == sum(sent) == 3 * plan.accumulation * plan.tokens * 64 * 4
    assert flops(MODELS[name], replace(plan, checkpointing="full")).moved == 0
