"""The choice of a policy against brute force: every policy, every step between blocks, every room that matters."""

from __future__ import annotations

from dataclasses import replace

import pytest

from minigpt.memory import Architecture, TrainingPlan
from minigpt.memory.plan import ALLOWED
from minigpt.memory.policies import Policies, computes_in, seconds, words
from minigpt.memory.predicted.flops import flops, priced
from minigpt.model import GPTConfig
from tools.models import MODELS, gpt2, llama, older

DEEP = {  # of nine blocks, but for what has kinds of blocks
    "minigpt": GPTConfig(n_layer=9, n_embd=64, n_head=4, vocab_size=256),
    "llama": llama(num_hidden_layers=9),
    "gpt2": gpt2(n_layer=9, n_positions=512),
    "gpt-neox": older("gpt_neox", intermediate_size=256, num_hidden_layers=9),
    "gemma2, which cannot run in a row": {**MODELS["gemma2"], "num_hidden_layers": 8},
    "gpt-oss, which cannot be selective": {**MODELS["gpt-oss"], "num_hidden_layers": 8},
    "mixtral": {**MODELS["mixtral"], "num_hidden_layers": 9},
}
PLANS = {
    "full": dict(),
    "lora": dict(method="lora", precision="bf16", targets="peft"),
    "qlora": dict(method="qlora", precision="fp16", seq_len=24),
    "autocast": dict(precision="fp16-autocast", accumulation=2),
    "cache": dict(precision="bf16", use_cache=True),
}


def asked(model, plan):
    """``priced``, each policy once."""
    known = {}

    def ask(policy):
        key = tuple(policy.items())
        if key not in known:
            known[key] = priced(model, replace(plan, **policy))
        return known[key]

    return ask


def all_policies(n_layer, ask):
    """Each policy that is not refused, with its peak and its seconds."""
    found = {}
    for name in ("selective", "full", "offload", "sqrt", "every"):
        for step in range(2, n_layer + 1) if name == "every" else (None,):
            policy = dict(checkpointing=name, use_cache=False) | ({"every_n_layers": step} if step else {})
            try:
                memory, work = ask(policy)
            except ValueError:
                continue
            found[name, step] = memory.peak.total, work
    return found


@pytest.mark.slow
@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
@pytest.mark.parametrize("model", DEEP.values(), ids=DEEP)
def test_the_cheapest_that_fits_is_what_trying_all_finds(model, plan):
    architecture, plan = Architecture.of(model), TrainingPlan(**{"batch": 2, "seq_len": 200, "card": "T4", **plan})
    n_layer, ask = architecture.n_layer, asked(architecture, plan)
    found = all_policies(n_layer, ask)
    price = {policy: seconds(work, plan) for policy, (_, work) in found.items()}
    refused = {name for name in ("selective", "sqrt") if (name, None) not in found}
    for room in sorted({peak + more for peak, _ in found.values() for more in (0, -1)}):
        policies = Policies(ask, plan, n_layer, room)
        fitting = [policy for policy, (peak, _) in found.items() if peak <= room]
        least = policies.least()
        assert bool(fitting) == (ask(least)[0].peak.total <= room)
        if not fitting:
            continue
        chosen = policies.cheapest()
        name = chosen["checkpointing"], chosen.get("every_n_layers")
        with_ease = [policy for policy in fitting if found[policy][0] <= 0.97 * room]  # peaks near others may be missed
        assert name in fitting and price[name] <= min((price[policy] for policy in with_ease), default=price[name])
        assert {f"checkpointing={name}" for name in refused} >= set(policies.refused)
        assert chosen.get("use_cache", plan.use_cache) is False


def test_a_choice_asks_few_of_them():
    """One where none fits, and four and the logarithm of the numbers of blocks at most, of fourteen."""
    architecture, plan = Architecture.of(DEEP["llama"]), TrainingPlan(batch=2, seq_len=200, card="T4")
    ask = asked(architecture, plan)
    found = all_policies(architecture.n_layer, ask)
    made = set()
    for room in sorted({peak for peak, _ in found.values()} | {0}):
        made.clear()
        policies = Policies(lambda policy: made.add(str(policy)) or ask(policy), plan, architecture.n_layer, room)
        fits = ask(policies.least())[0].peak.total <= room
        if not fits:
            assert len(made) == 1
            continue
        policies.cheapest()
        assert len(made) <= 6 < len(found)


@pytest.mark.parametrize("model", DEEP.values(), ids=DEEP)
def test_the_older_kind_computes_no_less_than_full_and_keeps_the_same_to_within_an_input(model):
    """Why it is not suggested."""
    plan = TrainingPlan(batch=2, seq_len=200, precision="bf16", card="T4")
    try:
        (older_step, older_work), (step, work) = (
            priced(model, replace(plan, checkpointing=name)) for name in ("reentrant", "full")
        )
    except ValueError as error:
        assert "frozen" in str(error)
        return
    assert older_work.again >= work.again
    assert older_step.peak.total >= step.peak.total - plan.tokens * Architecture.of(model).n_embd * 2


def test_seconds_by_hand():
    """LLaMA-7B on a T4: FLOPs at 65 TFLOPS, or at 8.1 in a format that it has not; inputs at 16 GB/s, both ways."""
    plan = TrainingPlan(method="lora", precision="fp16", seq_len=512, card="T4", checkpointing="offload")
    work, inputs = flops("llama-7b", plan), 32 * 512 * 4096 * 2
    assert work.moved == inputs
    assert seconds(work, plan) == pytest.approx(work.again / 65e12 + 2 * inputs / 16e9)
    assert seconds(work, replace(plan, precision="bf16")) == pytest.approx(work.again / 8.1e12 + 2 * inputs / 16e9)


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        (dict(), "float32"), (dict(precision="bf16"), "bfloat16"), (dict(precision="fp16-autocast"), "float16"),
        (dict(method="qlora"), "bfloat16"), (dict(method="qlora", precision="fp16"), "float16"),
        (dict(method="lora", precision="fp16", autocast=True), "float16"),
    ],
)  # fmt: skip
def test_the_format_of_products(fields, name):
    assert computes_in(TrainingPlan(**fields)) == name


def test_words():
    plan = TrainingPlan(precision="bf16", seq_len=512, accumulation=8, card="A100 80GB")
    few = replace(plan, accumulation=2)
    said, shares = {}, {}
    for name in ALLOWED["checkpointing"]:
        work = flops("llama-7b", replace(few, checkpointing=name))
        shares[name] = work.extra
        said[name] = words(replace(plan, checkpointing=name, every_n_layers=4), work, work.without, 32)
    again = f"+{shares['full']:.0%} FLOPs"
    assert said["full"] == f"every block's forward again: {again}"
    assert said["selective"] == "norms and activation functions again: no more FLOPs"
    assert said["every"].startswith("the forward of 8 of 32 blocks again: +")
    assert said["sqrt"] == f"every block's forward again, 5 blocks at a time: +{shares['sqrt']:.0%} FLOPs"
    inputs = 8 * 32 * 512 * 4096 * 2  # of all eight passes
    copies = f"{inputs / 1e9:.2f} GB to the CPU and back, {2 * inputs / 32e9:.2g} s of PCIe"
    assert said["offload"] == f"{said['full']}; {copies}"
