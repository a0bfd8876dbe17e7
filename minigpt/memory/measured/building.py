"""The real model that a plan describes, built from a configuration: what ``measure`` runs.

MiniGPT comes from this package; a Hugging Face configuration from transformers, with peft's adapters and bitsandbytes'
layers. Weights are random: memory does not depend on them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch._subclasses.fake_tensor import unset_fake_temporarily

from minigpt.memory.collector import at_rest
from minigpt.memory.measured.adapters import adapt, adapt_minigpt
from minigpt.memory.measured.cs336 import BasicsTransformerLM
from minigpt.memory.measured.fakes import make_fake
from minigpt.memory.measured.models import base_dtype, base_model, checkpoint_model, configuration, default_dtype
from minigpt.memory.plan import TrainingPlan
from minigpt.model import GPT

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel


def build(model, plan: TrainingPlan, device: str = "cpu") -> nn.Module:
    """The model in the plan's precision, attention and method, in training mode, on "fake", "cpu" or "cuda".

    For "fake", ``fake_tensors`` must be active. Raises ValueError for a model or a plan that the libraries refuse.
    """
    with at_rest():  # it imports what the model needs
        if device == "fake":
            with unset_fake_temporarily(), torch.device("meta"):
                built = _build(model, plan)
            return make_fake(built).train()
        with torch.device(device):
            return _build(model, plan).train()


def _build(model, plan: TrainingPlan) -> nn.Module:
    if isinstance(model, dict) and model.get("model_type") == "cs336":
        return _whole(model, plan)
    config = configuration(model)
    built: GPT | PreTrainedModel | PeftModel
    built = base = base_model(config, plan)
    if plan.method != "full":
        built = adapt_minigpt(base, plan) if isinstance(base, GPT) else adapt(base, plan)
    if plan.checkpointing != "none":
        checkpoint_model(built, plan)
    return built


def _whole(config: dict, plan: TrainingPlan) -> nn.Module:
    """CS336's model, which transformers has not. Raises ValueError for a plan that is not for it."""
    for name, only in {"method": "full", "checkpointing": "none", "attention": "eager"}.items():
        if getattr(plan, name) != only:
            raise ValueError(f"{name} is {getattr(plan, name)!r}; cs336 has {only!r} only")
    with default_dtype(base_dtype(plan)):
        return BasicsTransformerLM(config)
