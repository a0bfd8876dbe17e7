"""The whitelist of configuration fields against transformers' own classes and code, and against the meter."""

from __future__ import annotations

import inspect
import re
from dataclasses import MISSING, fields
from importlib import import_module

import pytest
import torch

from minigpt.memory import TrainingPlan, predict
from minigpt.memory.families.fields import COMMON_ONLY, COMMON_WITHOUT_EFFECT, FIELDS, check_fields
from minigpt.memory.families.fields.shared import GENERATION
from minigpt.memory.measured.building import build
from minigpt.memory.measured.step import measure, measure_module
from minigpt.memory.ranks import ONLY_WITH, SHARDING
from tools.fuzz_case import quantities
from tools.fuzz_space import NO_SDPA, OTHER, ROPE, draw_model
from tools.models import gpt2, llama, mixture


def config_class(family: str) -> type:
    from transformers import AutoConfig

    return type(AutoConfig.for_model(family))


def defaults(family: str) -> dict:
    """The class's own fields; what its __post_init__ makes of them is the family's."""
    made = config_class(family)
    own = [f for f in fields(made) if f.name != "model_type"]
    return {f.name: f.default if f.default is not MISSING else f.default_factory() for f in own}


def sources(family: str) -> list[str]:
    """The texts of the family's configuration and modeling files."""
    name = config_class(family).__module__
    return [
        inspect.getsource(import_module(name.replace("configuration", room))) for room in ("configuration", "modeling")
    ]


@pytest.mark.parametrize("family", FIELDS)
def test_every_field_of_the_class_is_in_one_place(family):
    table = FIELDS[family]
    written = config_class(family)().to_dict()  # a saved file holds these
    known = table.used.keys() | table.only.keys() | table.without_effect | COMMON_ONLY.keys() | COMMON_WITHOUT_EFFECT
    known |= table.aliases.keys() | ({"rope_parameters"} if table.rotary else set())
    assert (defaults(family).keys() | written.keys() | config_class(family).attribute_map.keys()) - known == set()
    covered = table.used.keys() | table.only.keys()
    assert covered & table.without_effect == set()
    assert (table.used.keys() | table.without_effect) & COMMON_WITHOUT_EFFECT == set()


@pytest.mark.parametrize("family", FIELDS)
def test_defaults_are_transformers_own(family):
    table, made = FIELDS[family], config_class(family)
    ours = {**{name: allowed[0] for name, allowed in table.only.items()}, **table.used}
    theirs = {table.aliases.get(name, name): value for name, value in defaults(family).items()}
    for name in ours.keys() - theirs.keys():  # what the class takes by keyword, or its code reads if it is there
        theirs[name] = {
            table.rotary_part: getattr(made(), "rope_parameters", {}).get("partial_rotary_factor"),
            "rope_type": "default",
            "sliding_window_pattern": getattr(made(), "_sliding_window_pattern", None),
        }.get(name, ours[name] if name in table.only else None)
    assert {name: theirs[name] for name in ours} == ours


@pytest.mark.parametrize("family", FIELDS)
def test_no_field_is_stale(family):
    """What is used is of the class or read by the family's code; what is of neither is not read as a model is run."""
    table, theirs, (configuration, modeling) = FIELDS[family], defaults(family), sources(family)
    for name in table.used.keys() - theirs.keys() - set(table.aliases.values()):
        assert re.search(rf"""["']{name}["']""", configuration + modeling), name
    for name in table.without_effect - theirs.keys() - {"head_dim", "rope_theta"}:  # see below
        assert not re.search(rf"""config\.{name}\b|["']{name}["']""", modeling), name


def test_generations_fields_are_transformers_own():
    from transformers.generation.configuration_utils import GenerationConfig

    theirs = set(GenerationConfig._get_default_generation_params()) - {"use_cache"}
    assert theirs <= GENERATION


def simplest(options):
    return options[0]


def measured(config: dict) -> dict[str, int]:
    torch.manual_seed(0)  # routers choose by values
    attention = "eager" if config["model_type"] in NO_SDPA else "sdpa"
    plan = TrainingPlan(batch=2, seq_len=12, attention=attention)
    return quantities(measure_module(build(config, plan, "cpu"), plan))


@pytest.mark.parametrize("family", FIELDS)
def test_what_is_without_effect_has_none(family):
    """All of it at once at other values: every bucket, the peak and each phase are the same to the byte."""
    plain, table = draw_model(simplest, family), FIELDS[family]
    changes = {
        name: _another(name, defaults(family).get(name)) for name in table.without_effect | COMMON_WITHOUT_EFFECT
    }
    changes["unsloth_version"] = "2026.10"
    assert check_fields(family, {**plain, **changes}) == check_fields(family, plain)
    del changes["model_type"]
    if family == "deepseek_v3":  # it makes this one itself, and cannot run with another
        del changes["head_dim"]
    assert measured({**plain, **changes}) == measured(plain)


def _another(name: str, default):
    if name in OTHER:
        return OTHER[name]
    if isinstance(default, (bool, float)):
        return not default if isinstance(default, bool) else 0.5 * default
    return 3


@pytest.mark.parametrize("kind", ROPE, ids=lambda kind: kind["rope_type"])
def test_how_frequencies_are_scaled_has_no_effect(kind):
    plain = draw_model(simplest, "llama")
    assert kind["rope_type"] in COMMON_ONLY["rope_type"]
    assert measured({**plain, "rope_scaling": {**kind}}) == measured(plain)


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("llama", dict(hidden_act="mish"), "hidden_act is 'mish'; allowed: silu, swish, gelu"),
        ("mixtral", dict(output_router_logits=True), "output_router_logits is True; allowed: False"),
        ("opt", dict(layerdrop=False), "layerdrop is False; allowed: 0.0"),
        ("llama", dict(foo=3), "foo is 3; llama has no such field"),
        ("llama", dict(sliding_window=8), "sliding_window is 8; llama has no such field"),
        ("llama", dict(quantization_config={"bits": 4}), "quantization_config is {'bits': 4}; allowed: None"),
        ("gpt_neox", dict(partial_rotary_factor=0.5), "partial_rotary_factor is 0.5; allowed: 1.0, None"),
        ("llama", dict(partial_rotary_factor=0.5), "partial_rotary_factor is 0.5; allowed: 1.0, None"),
        ("llama", dict(rope_scaling={"rope_type": "mrope"}), "rope_type is 'mrope'; allowed: default, linear"),
        ("llama", dict(rope_parameters=8), "rope_parameters is 8; it must be a dictionary"),
        ("opt", dict(layerdrop=0.1), "layerdrop is 0.1; allowed: 0.0"),
        ("gpt2", dict(rope_scaling={}), "rope_scaling is {}; gpt2 has no such field"),
        ("mamba", dict(), "model_type is 'mamba'; allowed: llama"),
    ],
)
def test_what_is_not_covered_is_named(family, changes, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        check_fields(family, changes)


def test_what_a_file_says_is_returned():
    used = check_fields("gpt_neox", {"rotary_pct": 0.5, "hidden_size": 64, "foo": None, "rope_scaling": None})
    assert (used["rotary_pct"], used["hidden_size"], used["num_hidden_layers"]) == (0.5, 64, 44)
    both = {"rotary_pct": 0.5, "rope_parameters": {"partial_rotary_factor": 1.0}}
    assert check_fields("gpt_neox", both)["rotary_pct"] == 1.0
    assert check_fields("bloom", {"n_embed": 1024, "hidden_size": 64})["hidden_size"] == 1024
    assert check_fields("mistral", {"sliding_window": None})["sliding_window"] is None
    assert check_fields("phi", {"rope_parameters": {"partial_rotary_factor": 0.4}})["partial_rotary_factor"] == 0.4


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (mixture("mixtral", output_router_logits=True), "output_router_logits is True; allowed: False"),
        (gpt2(reorder_and_upcast_attn=True), "reorder_and_upcast_attn is True; allowed: False"),
    ],
    ids=str,
)
def test_predict_refuses_what_was_once_wrong_without_a_word(model, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        predict(model, TrainingPlan(seq_len=8))


@pytest.mark.parametrize(
    "model",
    [
        llama(attention_dropout=0.1),
        llama(hidden_act="gelu_new"),
        gpt2(activation_function="silu"),
        llama(model_type="mistral", sliding_window=8),
        llama(model_type="qwen2", use_sliding_window=True, sliding_window=8, max_window_layers=1),
        llama(model_type="qwen3", layer_types=["sliding_attention"] * 3, use_sliding_window=True, sliding_window=8),
        llama(model_type="gemma2", sliding_window=8),
        mixture("mixtral", num_local_experts=8, intermediate_size=48, sliding_window=8, attention_dropout=0.1),
    ],
    ids=str,
)
@pytest.mark.parametrize("length", [7, 8])
def test_what_was_once_wrong_without_a_word_is_exact(model, length):
    plan = TrainingPlan(batch=2, seq_len=length)
    assert predict(model, plan).peak == measure(model, plan).peak


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (dict(sharding="fsdp"), "sharding is 'fsdp'; allowed: none, ddp, zero1, zero2, zero3, fsdp2"),
        (dict(sharding="fsdp2"), "ranks is 1; with sharding 'fsdp2' it must be at least 2"),
        (dict(ranks=2), "ranks is 2; with sharding 'none' it must be 1"),
        (dict(ranks=0), "ranks is 0; it must be an integer of at least 1"),
        (dict(ranks=2, sharding="ddp", reshard_after_forward=False), "reshard_after_forward is False; with sharding"),
        (dict(ranks=2, sharding="zero1", param_dtype="bf16"), "param_dtype is 'bf16'; with sharding 'zero1' it must"),
        (dict(ranks=2, sharding="zero3", reduce_dtype="fp32"), "reduce_dtype is 'fp32'; with sharding 'zero3' it must"),
        (dict(ranks=2, sharding="fsdp2", reduce_dtype="fp32"), "reduce_dtype is 'fp32', which float32 gradients are"),
        (dict(ranks=2, sharding="fsdp2", precision="bf16", param_dtype="fp16"), "param_dtype is 'fp16' with precision"),
        (dict(ranks=2, sharding="ddp", shard_offload="optimizer"), "shard_offload is 'optimizer'; with sharding 'ddp'"),
        (dict(ranks=2, sharding="zero2", shard_offload="parameters"), "shard_offload is 'parameters'; with sharding"),
        (dict(ranks=2, sharding="fsdp2", shard_offload="optimizer"), "shard_offload is 'optimizer'; with sharding"),
        (dict(ranks=2, sharding="fsdp2", gradient_as_bucket_view=True), "gradient_as_bucket_view is True; with"),
    ],
    ids=str,
)
def test_words_about_ranks_that_do_not_go_together(words, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        TrainingPlan(**words)


@pytest.mark.parametrize("name", ONLY_WITH)
def test_a_word_about_ranks_is_allowed_where_it_has_an_effect(name):
    kinds, plain = ONLY_WITH[name]
    other = next(value for value in (*SHARDING.get(name, ()), not plain) if value != plain)
    for sharding in kinds:
        precision = "bf16" if name == "reduce_dtype" else "fp32"
        value = "parameters" if (name, sharding) == ("shard_offload", "fsdp2") else other
        plan = TrainingPlan(ranks=2, sharding=sharding, precision=precision, **{name: value})
        assert getattr(plan, name) == value
