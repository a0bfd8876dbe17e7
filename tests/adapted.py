"""Small models with our adapters and with peft's, for the tests of adapters."""

from __future__ import annotations

import copy

import torch
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from torch import nn

from minigpt import lora
from minigpt.data import random_windows
from minigpt.model import GPT, GPTConfig

CONFIG = GPTConfig(n_layer=2, n_embd=32, n_head=2, context=32)
SIX = ["q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj"]
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


def pair(kind: str, base: nn.Module | None = None, targets=SIX, dropout: float = 0.0, moved: bool = True):
    """The same base with our adapters and with peft's, which have the same values; ``moved``: away from the start."""
    base = tiny() if base is None else base
    theirs = peft_of(base, kind, targets, dropout)
    ours = copy.deepcopy(base)
    lora.inject(ours, 4, 8, targets, kind, dropout=dropout)
    state = get_peft_model_state_dict(theirs)
    assert state.keys() == lora.adapter_tensors(ours).keys()
    if moved:
        torch.manual_seed(1)
        state = {key: value + 0.1 * torch.rand_like(value) for key, value in state.items()}
        set_peft_model_state_dict(theirs, state)
    for key, parameter in lora.adapter_tensors(ours).items():
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
