"""Parameter counts: published ones exactly, and transformers' own model for every family and switch."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from minigpt.memory import Architecture
from minigpt.memory.families import FAMILIES
from minigpt.model import GPT, PRESETS, GPTConfig
from tools.models import MODELS

PUBLISHED = {
    "llama-7b": 6_738_415_616, "llama-13b": 13_015_864_320, "llama-30b": 32_528_943_616, "llama-65b": 65_285_660_672,
    "llama-2-70b": 68_976_648_192, "llama-3-8b": 8_030_261_248, "mistral-7b": 7_241_732_096, "qwen3-8b": 8_190_735_360,
    "qwen2.5-0.5b": 494_032_768, "gpt2": 124_439_808, "qwen3-30b-a3b": 30_532_122_624, "mixtral-8x7b": 46_702_792_704,
    "gpt-oss-20b": 20_914_757_184,
}  # fmt: skip


def transformers_model(config: dict, device: str = "meta") -> torch.nn.Module:
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device(device):
        return AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_counts(name):
    assert Architecture.of(name).parameters == PUBLISHED[name]


@pytest.mark.parametrize("name", [name for name in MODELS if not name.startswith("minigpt")])
def test_tensors_are_transformers_own(name):
    model = transformers_model(MODELS[name])
    ours = sorted(tuple(sorted(t.shape)) for t in Architecture.of(MODELS[name]).tensors())
    theirs = sorted(tuple(sorted(p.shape)) for p in model.parameters())
    assert ours == theirs


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "minigpt"])
def test_what_a_config_leaves_out_is_transformers_default(family):
    model = transformers_model({"model_type": family})
    assert Architecture.of({"model_type": family}).parameters == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("preset", PRESETS)
def test_minigpt_count_is_numel(preset):
    config = GPTConfig.preset(preset)
    with torch.device("meta"):
        model = GPT(config)
    architecture = Architecture.of(config)
    assert architecture.parameters == sum(p.numel() for p in model.parameters())
    linears = [m for n, m in model.named_modules() if isinstance(m, torch.nn.Linear) and n != "lm_head"]
    assert architecture.linear_parameters == sum(m.weight.numel() for m in linears)


def test_small_has_gpt2s_linear_weights():
    assert Architecture.of(GPTConfig.preset("small")).linear_parameters == 84_934_656


def test_every_source_gives_the_same(tmp_path):
    from transformers import AutoConfig

    config = {k: v for k, v in MODELS["qwen2-tied"].items() if v is not None}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    expected = Architecture.of(config)
    assert Architecture.of(str(path)) == Architecture.of(tmp_path) == Architecture.of(path) == expected
    assert Architecture.of(AutoConfig.for_model(**config)) == expected
    assert Architecture.of(expected) is expected


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"model_type": "mamba", "hidden_size": 8}', "model_type is 'mamba'; allowed: llama"),
        ("{}", "model_type is None; allowed"),
        ("{", "is not valid JSON"),
        ("[]", "holds a list"),
        ('{"model_type": "llama", "num_hidden_layers": -1}', "num_hidden_layers is -1"),
        ('{"model_type": "llama", "hidden_size": "wide"}', "hidden_size is 'wide'"),
        ('{"model_type": "llama", "num_key_value_heads": 5}', "n_kv_head is 5; it must divide n_head"),
        ('{"model_type": "gpt2", "add_cross_attention": true}', "add_cross_attention is True; allowed: False"),
        (
            '{"model_type": "llama", "num_hidden_layers": 1000000}',
            "num_hidden_layers is 1000000; it must be at most",
        ),
        ('{"model_type": "llama", "num_key_value_heads": 0}', "n_kv_head is 0; it must be an integer"),
        ('{"model_type": "llama", "head_dim": 0}', "head_dim is 0"),
        ('{"model_type": "llama", "hidden_size": 4097}', "num_attention_heads is 32; it must divide the width"),
        ('{"model_type": "gpt2", "n_inner": 0}', "n_inner is 0"),
        ('{"model_type": "gpt2", "n_head": 5}', "n_head is 5; it must divide the width"),
        ('{"model_type": "llama", "tie_word_embeddings": "false"}', "tie_word_embeddings is 'false'; it must be True"),
        ('{"model_type": "qwen3", "attention_bias": "4"}', "attention_bias is '4'"),
        ('{"model_type": "llama", "mlp_bias": NaN}', "mlp_bias is nan"),
        ('{"model_type": "gpt2", "activation_function": 5}', "activation_function is 5; allowed: gelu_new, silu"),
        ('{"model_type": "gpt2", "resid_pdrop": -1}', "resid_pdrop is -1; it must be a number from 0 to 1"),
        ('{"model_type": "gpt2", "attn_pdrop": "a"}', "attn_pdrop is 'a'"),
        ('{"a":' * 100_000, "is not valid JSON"),
    ],
)
def test_bad_configurations_are_named(tmp_path, content, message):
    path = tmp_path / "config.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        Architecture.of(path)


@pytest.mark.parametrize("changes", [dict(tied=1), dict(activation="exact"), dict(resid_pdrop=True)], ids=str)
def test_bad_fields_are_named(changes):
    ((name, value),) = changes.items()
    with pytest.raises(ValueError, match=f"{name} is {value!r}; "):
        replace(Architecture.of("gpt2"), **changes)


def test_another_object_is_named():
    with pytest.raises(ValueError, match="the model is 7; allowed: a GPTConfig"):
        Architecture.of(7)
