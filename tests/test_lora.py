"""Adapters against peft on the same model: outputs, gradients, training, merging, files and counts."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional as F
from transformers import AutoConfig, AutoModelForCausalLM

from minigpt import lora
from minigpt.data import random_windows
from minigpt.lora import KINDS, LoRALinear
from minigpt.memory.architecture import KNOWN, Architecture
from minigpt.model import GPT, GPTConfig
from minigpt.train import TrainPlan, train

CONFIG = GPTConfig(n_layer=2, n_embd=32, n_head=2, context=32)
SIX = ["q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj"]
SEVEN = [*SIX, "gate_proj"]
TEXT = torch.randint(1, 256, (400,), generator=torch.Generator().manual_seed(0))
BATCHES = random_windows(TEXT, 2, 16)
CLOSE = dict(rtol=1e-6, atol=1e-6)


def tiny() -> GPT:
    torch.manual_seed(0)
    return GPT(CONFIG)


def biased() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 24), nn.GELU(), nn.Linear(24, 8))


def peft_of(base: nn.Module, kind: str, targets, dropout: float = 0.0, autocast_adapter_dtype: bool = True):
    config = LoraConfig(
        r=4, lora_alpha=8, target_modules=targets, lora_dropout=dropout, use_rslora=kind == "rslora",
        use_dora=kind == "dora",
    )  # fmt: skip
    return get_peft_model(copy.deepcopy(base), config, autocast_adapter_dtype=autocast_adapter_dtype)


def parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Our adapters by their names in peft's files."""
    return lora._parameters(lora._adapters(model))


def pair(kind: str, base: nn.Module | None = None, targets=SIX, dropout: float = 0.0, moved: bool = True):
    """The same base with our adapters and with peft's, which have the same values; ``moved``: away from the start."""
    base = tiny() if base is None else base
    theirs = peft_of(base, kind, targets, dropout)
    ours = copy.deepcopy(base)
    lora.inject(ours, 4, 8, targets, kind, dropout=dropout)
    state = get_peft_model_state_dict(theirs)
    assert state.keys() == parameters(ours).keys()
    if moved:
        torch.manual_seed(1)
        state = {key: value + 0.1 * torch.rand_like(value) for key, value in state.items()}
        set_peft_model_state_dict(theirs, state)
    for key, parameter in parameters(ours).items():
        assert parameter.dtype == state[key].dtype
        parameter.data.copy_(state[key])
    return ours, theirs


def gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    """The gradients of a peft model, by the names in its files."""
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    for p in trained.values():
        p.data = p.grad
    return get_peft_model_state_dict(model)


def frozen(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters() if not p.requires_grad}


def assert_frozen_unchanged(model: nn.Module, before: dict[str, torch.Tensor]) -> None:
    after = frozen(model)
    assert before and after.keys() == before.keys()
    assert all(torch.equal(after[name], before[name]) for name in before)


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_and_gradients_equal_peft(kind):
    ours, theirs = pair(kind)
    tokens, targets = BATCHES[0]
    torch.testing.assert_close(ours(tokens), theirs(tokens), **CLOSE)
    assert not torch.allclose(ours(tokens), tiny()(tokens), atol=1e-3)  # the adapters did something
    ours(tokens, targets).backward()
    theirs(tokens, targets).backward()
    expected = gradients(theirs)
    for key, p in parameters(ours).items():
        assert p.grad.abs().max() > 0
        torch.testing.assert_close(p.grad, expected[key], **CLOSE)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", ["fp32", "dropout", "bf16 base", "autocast"])
def test_layers_with_a_bias_equal_peft(kind, case):
    base = biased().to(torch.bfloat16 if case == "bf16 base" else torch.float32)
    ours, theirs = pair(kind, base, ["0", "2"], dropout=0.3 if case == "dropout" else 0.0)
    x = torch.randn(5, 16, generator=torch.Generator().manual_seed(2)).to(base[0].weight.dtype)
    outputs = []
    for model in (ours, theirs):
        torch.manual_seed(3)  # of the dropout
        with torch.autocast("cpu", torch.bfloat16, enabled=case == "autocast"):
            outputs.append(model.train()(x))
        outputs[-1].float().square().sum().backward()
    assert outputs[0].dtype == outputs[1].dtype
    torch.testing.assert_close(*outputs, **CLOSE)
    expected = gradients(theirs)
    for key, p in parameters(ours).items():
        print(case, kind, key, (p.grad - expected[key]).abs().max().item(), p.grad.abs().max().item())
        torch.testing.assert_close(p.grad, expected[key], **CLOSE)
