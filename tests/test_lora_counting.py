"""Counts of parameters from a configuration alone: published ones, peft's, and those of real models."""

from __future__ import annotations

import copy

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM

from minigpt import lora
from minigpt.memory.families import KNOWN, Architecture
from minigpt.model import GPT, GPTConfig
from tests.adapted import SIX

SEVEN = [*SIX, "gate_proj"]


PUBLISHED = [  # of the adapters' parameters
    ("llama-7b", 8, SEVEN, 19_988_480),
    ("llama-7b", 8, ["q_proj", "v_proj"], 4_194_304),
    ("llama-13b", 16, SEVEN, 62_586_880),
    ("llama-3-8b", 8, SEVEN, 20_971_520),
    ("qwen3-8b", 8, SEVEN, 21_823_488),
]


@pytest.mark.parametrize(("name", "rank", "targets", "published"), PUBLISHED)
def test_adapter_parameters_equal_the_published_counts_peft_and_ours(name, rank, targets, published):
    assert lora.adapter_parameters(name, rank, targets) == published
    if targets is SEVEN:
        assert lora.adapter_parameters(name, rank, "all-linear") == published
    n_layer = Architecture.of(name).n_layer
    with torch.device("meta"):  # one block of the real model, without its bytes
        one_block = AutoModelForCausalLM.from_config(AutoConfig.for_model(**{**KNOWN[name], "num_hidden_layers": 1}))
        theirs = get_peft_model(copy.deepcopy(one_block), LoraConfig(r=rank, target_modules=targets, use_dora=False))
    assert n_layer * theirs.get_nb_trainable_parameters()[0] == published
    lora.inject(one_block, rank, targets="all-linear" if targets is SEVEN else targets, kind="dora")
    count = n_layer * lora.trainable_parameters(one_block)
    assert count == lora.adapter_parameters(name, rank, targets, "dora") > published


def test_adapter_parameters_of_minigpt_small():
    config = GPTConfig.preset("small")
    with torch.device("meta"):
        model = GPT(config)
    assert len(lora.inject(model, 8, targets=SIX)) == 72
    assert lora.trainable_parameters(model) == lora.adapter_parameters(config, 8, "all-linear") == 1_327_104
    assert lora.adapter_parameters(config, 8, SIX) == 1_327_104
    with pytest.raises(ValueError, match="targets has 'gate_proj', but no layer has that name; .* a list of q_proj"):
        lora.adapter_parameters(config, 8, ["gate_proj"])


@pytest.mark.parametrize("kind", lora.KINDS)
@pytest.mark.parametrize("plain", [[], [1]])
def test_adapter_parameters_of_blocks_that_differ(plain, kind):
    """A mixture of experts: its experts are no linear layers, but a block without experts has three more."""
    config = AutoConfig.for_model(
        "qwen3_moe", vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16,
        mlp_only_layers=plain,
    )  # fmt: skip
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    assert len(lora.inject(model, 4, targets="all-linear", kind=kind)) == 3 * 4 + 3 * len(plain)
    assert lora.adapter_parameters(config, 4, "all-linear", kind) == lora.trainable_parameters(model)
