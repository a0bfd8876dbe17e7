"""The fuzzer itself, a seeded part of its cases, and the same space given to Hypothesis, which shrinks a failure."""

from __future__ import annotations

import copy
import json
import math
import random
from dataclasses import fields, replace
from itertools import islice

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from minigpt.memory import TrainingPlan, predict
from minigpt.memory.families.fields import FIELDS
from minigpt.memory.measured.building import build
from minigpt.memory.measured.step import measure, measure_module
from minigpt.memory.plan import PRECISIONS
from minigpt.memory.ranks import OF_RANKS
from tools import fuzz, fuzz_case
from tools.fuzz_case import Outcome, command, describe, run_case
from tools.fuzz_case import settings as settings_of
from tools.fuzz_space import FAMILIES, NO_SDPA, as_model, draw_case, draw_model, draw_plan

pytestmark = pytest.mark.usefixtures("quick_and_quiet")


def small(family: str, plan: dict, **changes) -> dict:
    """A case: the plainest model of the family with changes, on real tensors."""
    plain = draw_model(lambda options: options[0], family)
    return {"model": {**plain, **changes}, "plan": {"batch": 1, "seq_len": 7, **plan}, "device": "cpu"}


CAST = dict(method="qlora", precision="bf16", autocast=True, adapter_dtype="same", modules_to_save="embedding,head")
INT8 = dict(method="qlora", quantization="int8")
FOUR_BIT = dict(method="qlora", precision="bf16", kbit_preparation=False, targets="qkv")

# What the fuzzer once found, its smallest case each.
FOUND = {
    "bitsandbytes' layers in gpt2": small("gpt2", dict(method="qlora")),
    "4-bit matrices under 64 weights in MiniGPT": small("minigpt", dict(method="qlora", rank=2), n_embd=4),
    "eager attention, autocast, checkpointing": small(
        "llama", dict(precision="bf16-autocast", attention="eager", checkpointing="full")
    ),
    "a cache without a window": small("mistral", dict(use_cache=True), sliding_window=None),
    **{
        f"transformers casts logits whatever the plan says, {name}": small("llama", dict(precision=name, upcast=False))
        for name, precision in PRECISIONS.items()
        if precision.weights == 2
    },
    "dropout under checkpointing in gpt2": small(
        "gpt2", dict(checkpointing="full", seq_len=2), n_embd=32, resid_pdrop=0.1, attn_pdrop=0.1
    ),
    "8-bit AdamW has no float32 gradients": small("gpt2", dict(precision="bf16-master-grad32", optimizer="adamw8bit")),
    "autocast takes a loss's 16-bit logits in float32": small(
        "llama", dict(precision="bf16-autocast", loss="shifted", upcast=False, seq_len=2)
    ),
    "a short last block is decoded by itself": small("minigpt", dict(method="qlora", seq_len=1), n_embd=10),
    "pieces of logits with phi's bias": small("phi", dict(loss="chunked")),
    "a padded batch brings opt's mask": small(
        "opt", dict(seq_len=24, sequences="padded", attention="eager", checkpointing="full")
    ),
    "a padded batch brings bloom's mask": small("bloom", dict(seq_len=24, method="qlora", sequences="padded")),
    "SGD has no float32 gradients": small("llama", dict(precision="bf16-master-grad32", optimizer="sgd")),
    "a tied head's gradient is written to and counts from its birth": small(
        "gpt2", dict(precision="bf16-autocast", optimizer_in_backward=True, seq_len=2)
    ),
    "a fused loss's gradient is saved, then written to": small(
        "smollm3", dict(loss="fused", optimizer_in_backward=True, seq_len=2)
    ),
    "Adafactor's rows and columns": small("gemma2", dict(optimizer="adafactor", seq_len=2)),
    "Adafactor's numbers of experts": small("mixtral", dict(optimizer="adafactor", seq_len=2)),
    "Adafactor's loaded rows give way one by one": small(
        "llama", dict(optimizer="adafactor", step="resumed", precision="bf16", seq_len=2)
    ),
    "a biased layer's input is seen as a matrix before its weight is turned": small(
        "starcoder2", dict(step="first", optimizer_in_backward=True, seq_len=5), vocab_size=16
    ),
    "trl casts what is trained whole, too; its loss keeps a cast piece": small("mistral", dict(CAST, loss="trl")),
    "16-bit scores beside float32 sinks": small("gpt_oss", CAST),
    "tables of 8-bit states are there before the first step": small(
        "llama", dict(optimizer="lion8bit", step="first", seq_len=2), vocab_size=600
    ),
    "8-bit layers cast their biases to what they are given": small("gpt2", dict(INT8, precision="bf16", autocast=True)),
    "8-bit layers' inputs live through a second run": small(
        "llama", dict(INT8, precision="bf16", kbit_preparation=False, checkpointing="full", seq_len=32)
    ),
    "autocast remembers a cast that an 8-bit layer made of a leaf": small(
        "olmo2", dict(INT8, precision="bf16-autocast", checkpointing="full", lora_dropout=0.05)
    ),
    "a dropped input is gone before B multiplies": small(
        "llama", dict(method="lora", precision="bf16-autocast", checkpointing="full", lora_dropout=0.05)
    ),
    "a layer with a bias turns its weight last": small(
        "phi",
        dict(seq_len=1, precision="bf16-master-grad32", optimizer_loop="single"),
        hidden_size=64,
        head_dim=16,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=16,
        intermediate_size=33,
    ),
    "phi's head has a bias, tied too": small(
        "phi", dict(method="lora", modules_to_save="head", optimizer_loop="single"), tie_word_embeddings=True
    ),
    "falcon adds to what autograd has not seen": small("falcon", FOUR_BIT, bias=True),
    "bloom makes a mask of ones where none is given": small("bloom", dict(sequences="padded", checkpointing="full")),
    "opt makes a mask of ones where none is given": small("opt", dict(sequences="padded", checkpointing="full")),
    "a gradient that is added to was one from its birth on": small(
        "gpt2", dict(precision="bf16-master-grad32", optimizer_in_backward=True), tie_word_embeddings=True
    ),
}


LATENT = dict(method="lora", targets="kv_a_proj_with_mqa,kv_b", rank=2)
EAGER = dict(attention="eager")
# What predict once refused, or had no family for.
COVERED = {
    "alibi, whose mask autocast casts in every layer": small(
        "falcon", dict(precision="bf16-autocast"), alibi=True, num_hidden_layers=3, attention_dropout=0.1
    ),
    "alibi in float32 on 16 bits": small("falcon", dict(EAGER, precision="bf16"), alibi=True, attention_dropout=0.1),
    "a window of all layers": small("qwen3_moe", {}, use_sliding_window=True, sliding_window=4),
    "a window of every other layer": small(
        "qwen2_moe", dict(holds="outputs", use_cache=True), use_sliding_window=True, sliding_window=4
    ),
    "a window of no width": small("qwen2_moe", {}, layer_types=["sliding_attention"]),
    "a router's noise": small("mixtral", {}, router_jitter_noise=0.1),
    "dropout of gpt_oss": small("gpt_oss", dict(precision="bf16"), attention_dropout=0.1),
    "an activation of experts": small("mixtral", {}, hidden_act="quick_gelu"),
    "an activation of gpt2": small("gpt2", {}, activation_function="tanh"),
    "adapters on the experts' gate and up": small("deepseek_v3", dict(method="lora", targets="gate,up", rank=2)),
    "adapters on the experts' down": small("deepseek_v3", dict(method="lora", targets="down", rank=2)),
    "adapters on the latent": small("deepseek_v3", dict(LATENT, precision="bf16", autocast=True)),
    "a latent in the cache": small("deepseek_v3", dict(EAGER, holds="outputs", use_cache=True)),
    "keys in two parts, side by side": small("deepseek_v3", dict(precision="bf16-autocast"), rope_interleave=False),
}


REFUSED = {  # what torch refuses, and the sentence
    "falcon adds to what a layer of 8 bits made": (
        small("falcon", dict(INT8, targets="qkv"), bias=True), "bias is True; torch refuses", "modified inplace"
    ),
    "falcon adds to what a layer of 4 bits made": (
        small("falcon", FOUR_BIT, bias=True, num_hidden_layers=2),
        "bias is True; torch refuses", "modified inplace",
    ),
    "an embedding that was cast, before a router in float32": (
        small("gpt_oss", dict(method="qlora", precision="bf16", adapter_dtype="same", modules_to_save="embedding")),
        "adapter_dtype is 'same'; torch multiplies no bfloat16 with a float32", "same dtype",
    ),
    "a head that was cast, after norms in float32": (
        small("llama", dict(method="qlora", precision="bf16", adapter_dtype="same", modules_to_save="head")),
        "adapter_dtype is 'same'; torch multiplies no float32 with a bfloat16 head", "same dtype",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("case", "sentence", "reason"), REFUSED.values(), ids=list(REFUSED))
def test_what_torch_refuses_is_refused(case, sentence, reason):
    model, plan = as_model(copy.deepcopy(case["model"])), TrainingPlan(**case["plan"])
    with pytest.raises(ValueError, match=sentence):
        predict(model, plan)
    with pytest.raises(RuntimeError, match=reason):
        measure(model, plan, "cpu")


@pytest.mark.slow
@pytest.mark.parametrize("case", FOUND.values(), ids=list(FOUND))
def test_what_was_found(case):
    assert run_case(case).kind in ("exact", "refused", "impossible")


@pytest.mark.parametrize("case", COVERED.values(), ids=list(COVERED))
def test_what_was_not_covered(case):
    outcome = run_case(case)
    assert outcome.kind == "exact", describe(case, outcome)


@pytest.mark.slow
def test_a_seeded_part():
    """As ``python -m tools.fuzz --seed 7 --cases 80``."""
    kinds = []
    for case, outcome in islice(fuzz.outcomes(7, list(FAMILIES), jobs=1), 80):
        kinds.append(outcome.kind)
        assert outcome.kind not in fuzz.FINDINGS, describe(case, outcome)
    assert kinds.count("exact") > 60


@pytest.mark.slow
@settings(max_examples=30, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_predict_is_measure(data):
    """Hypothesis draws the case, and shrinks one that is different towards the first option of each choice."""
    case = draw_case(lambda options: data.draw(st.sampled_from(list(options))), FAMILIES)
    outcome = run_case(case)
    assume(outcome.kind not in ("refused", "impossible", "not measured"))
    assert outcome.kind in ("exact", "close"), describe(case, outcome)


@pytest.mark.parametrize("family", FAMILIES)
def test_models_of_every_family_can_be_built_and_run(family):
    for index in range(2):
        model = draw_model(random.Random(f"{family} {index}").choice, family)
        plan = TrainingPlan(seq_len=8, attention="eager" if family in NO_SDPA else "sdpa")
        if model.get("return_dict", True):  # a tuple has no loss by name
            assert measure_module(build(as_model(copy.deepcopy(model)), plan, "cpu"), plan).peak.total > 0


BY_SCALING = {"rope_type", "partial_rotary_factor", "original_max_position_embeddings"}  # drawn inside rope_scaling


@pytest.mark.parametrize("family", FIELDS)
def test_every_field_is_drawn_away_from_its_default(family):
    table = FIELDS[family]
    missing = (table.used.keys() | table.only.keys()) - BY_SCALING
    for index in range(6000):
        missing -= draw_model(random.Random(f"{index}").choice, family).keys()
        if not missing:
            return
    assert missing == set()


def test_every_word_of_the_plan_is_drawn():
    model, words = draw_model(lambda options: options[0], "llama"), set()
    for index in range(2000):
        words |= draw_plan(random.Random(f"{index}").choice, model).keys()
    # Several ranks are several processes, started once for many cases: `make accuracy` has theirs.
    assert {field.name for field in fields(TrainingPlan)} - words == {"card", *OF_RANKS}


CASE = small("llama", dict(batch=2, optimizer="sgd", precision="bf16", attention="eager", holds="outputs"))


def test_a_difference_is_found_and_made_smaller(monkeypatch, capsys):
    """A predictor that takes every optimizer for AdamW is caught, and what remains of the case is the optimizer."""
    monkeypatch.setattr(fuzz_case, "predict", lambda model, plan: predict(model, replace(plan, optimizer="adamw")))
    run, outcome = fuzz.Fuzz(0, until=math.inf), run_case(CASE)
    run.take(CASE, outcome)
    (group,) = run.groups
    assert group.outcome.off[0] == "optimizer" and settings_of(group.case) == {"optimizer": "sgd"}
    run.take(CASE, outcome)  # the same cause
    assert run.groups == [group] and group.cases == 2 and run.kinds == {"different": 2}
    assert command(group.case) in capsys.readouterr().out and command(group.case) in run.summary()


@pytest.mark.parametrize(
    ("error", "kind"), [(KeyError("x"), "crashed"), (ValueError("foo is 3; allowed: 4"), "refused")], ids=str
)
def test_what_predict_raises(error, kind, monkeypatch):
    def fail(model, plan):
        raise error

    monkeypatch.setattr(fuzz_case, "predict", fail)
    monkeypatch.setattr(fuzz, "shrink", lambda case, outcome, until: (case, outcome))
    run = fuzz.Fuzz(0, until=math.inf)
    run.take(CASE, run_case(CASE))
    assert run.kinds == {kind: 1} and run.reasons["refused"] == ({"foo": 1} if kind == "refused" else {})


def test_what_measure_raises(monkeypatch):
    from minigpt.memory.measured import step

    def fail(model, plan, device):
        raise ValueError("step is 'first', which is not measured")

    monkeypatch.setattr(step, "measure", fail)
    assert run_case(CASE) == Outcome("not measured", "step is 'first', which is not measured")
    refused = {**CASE, "model": {**CASE["model"], "is_causal": False}}
    assert run_case(refused) == Outcome("impossible", "is_causal is False; allowed: True")


def test_a_plan_that_is_none_is_not_a_refusal():
    none = {**CASE, "plan": {**CASE["plan"], "optimizer_in_backward": True, "accumulation": 2}}
    assert run_case(none) == Outcome("impossible", "accumulation is 2; with optimizer_in_backward it must be 1")


def test_what_is_refused_is_run_all_the_same():
    """So that the table can say whether the libraries refuse it, too."""
    refused = {**CASE, "model": {**CASE["model"], "is_causal": False}}
    assert run_case(refused) == Outcome("refused", "is_causal is False; allowed: True")


@pytest.mark.slow
def test_the_same_seed_gives_the_same_table(capsys):
    """However many processes share the cases."""
    arguments = ["--cases", "12", "--seed", "3", "--family", "minigpt", "--family", "llama"]
    printed = []
    for jobs in ("1", "2"):
        assert fuzz.main([*arguments, "--jobs", jobs]) in (0, 1)
        printed.append([line for line in capsys.readouterr().out.splitlines() if "a second" not in line])
    assert printed[0] == printed[1] and "12 cases" not in printed[0]
    assert fuzz.main(["--show", json.dumps(CASE)]) == 0
    assert "exact: llama" in capsys.readouterr().out


def test_it_stops_on_time_and_at_an_interrupt(monkeypatch, capsys):
    assert fuzz.main(["--minutes", "0"]) == 0
    assert "0 cases in" in capsys.readouterr().out
    outcomes = iter([Outcome("exact")] * 2)

    def interrupted(case):
        for outcome in outcomes:
            return outcome
        raise KeyboardInterrupt

    monkeypatch.setattr(fuzz, "run_case", interrupted)
    assert fuzz.main(["--cases", "5", "--jobs", "1"]) == 130
    assert "2 cases in" in capsys.readouterr().out
