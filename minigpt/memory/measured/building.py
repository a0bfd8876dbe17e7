"""The real model and optimizer that a plan describes, built from a configuration: what ``measure`` runs.

MiniGPT comes from this package; a Hugging Face configuration from transformers, with peft's adapters and
bitsandbytes' 4-bit layers. Weights are random: memory does not depend on them.

A model on fake tensors is built on the meta device first, because libraries move and cast their weights while
they build, which fake parameters do not survive. bitsandbytes' 4-bit weights cannot be fake at all.
"""

from __future__ import annotations

import contextlib
import functools

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from minigpt.memory.plan import TrainingPlan
from minigpt.precision import adamw


def build(model, plan: TrainingPlan, device: str = "cpu") -> nn.Module:
    """The model in the plan's precision, attention and method, in training mode, on "fake", "cpu" or "cuda".

    For "fake", FakeTensorMode must be active. Raises ValueError for what bitsandbytes cannot do on fake tensors.
    """
    from minigpt.model import GPTConfig

    if device == "fake" and plan.optimizer == "adamw8bit":
        raise ValueError("optimizer is 'adamw8bit', which needs values; fake tensors have none: allowed: cpu, cuda")
    with torch.device("meta" if device == "fake" else device):
        built = _minigpt(model, plan) if isinstance(model, GPTConfig) else _hugging_face(model, plan, device)
    if plan.checkpointing == "full":
        _checkpoint(built)
    return (_make_fake(built) if device == "fake" else built).train()


def _minigpt(config, plan: TrainingPlan) -> nn.Module:
    from minigpt.model import GPT, GPTConfig

    with _default_dtype(_base_dtype(plan)):
        model = GPT(GPTConfig(**{**vars(config), "attention": plan.attention}))
    if plan.method == "full":
        return model
    if plan.method == "qlora":
        from minigpt.nf4 import quantize_model

        quantize_model(model, double_quantization=plan.double_quantization, compute_dtype=_half(plan))
        if plan.kbit_preparation:
            _upcast(model)
    from minigpt.lora import inject

    dtype = torch.float32 if plan.adapter_dtype == "fp32" else _base_dtype(plan)
    inject(model, plan.rank, targets=_modules(plan), kind=plan.variant, adapter_dtype=dtype)
    return model


def _hugging_face(config, plan: TrainingPlan, device: str) -> nn.Module:
    from transformers import AutoConfig, AutoModelForCausalLM

    from minigpt.memory.families import KNOWN

    config = KNOWN.get(config, config) if isinstance(config, str) else config
    if isinstance(config, dict):
        config = AutoConfig.for_model(**config)
    model = AutoModelForCausalLM.from_config(config, dtype=_base_dtype(plan), attn_implementation=plan.attention)
    if plan.method == "full":
        return model
    from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training

    if plan.method == "qlora":
        if device == "fake":
            raise ValueError("device is 'fake'; bitsandbytes' 4-bit weights need real tensors: allowed: cpu, cuda")
        _quantize(model, plan)
        if plan.kbit_preparation:
            model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
    variant = dict(use_rslora=plan.variant == "rslora", use_dora=plan.variant == "dora")
    adapters = LoraConfig(r=plan.rank, target_modules=_modules(plan), task_type="CAUSAL_LM", **variant)
    model = get_peft_model(model, adapters, autocast_adapter_dtype=plan.adapter_dtype == "fp32")
    if plan.adapter_dtype == "same" and device == "fake":  # peft leaves adapters on the meta device as they were made
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.to(_base_dtype(plan))
    return model


def _checkpoint(model: nn.Module) -> None:
    """Every block runs under torch.utils.checkpoint, without reentrant autograd: transformers' default too."""
    if hasattr(model, "gradient_checkpointing_enable"):
        model.gradient_checkpointing_enable()
        return
    for block in model.blocks:
        block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)


def _quantize(model: nn.Module, plan: TrainingPlan) -> None:
    """Every linear but the head becomes bitsandbytes' Linear4bit, as ``load_in_4bit`` makes it."""
    from bitsandbytes.nn import Linear4bit, Params4bit

    for name, linear in list(model.named_modules()):
        if not isinstance(linear, nn.Linear) or name == "lm_head":
            continue
        options = dict(quant_type="nf4", compress_statistics=plan.double_quantization)
        four_bit = Linear4bit(
            linear.in_features, linear.out_features, linear.bias is not None, _half(plan), device="meta", **options
        )
        weight = Params4bit(linear.weight.data, requires_grad=False, module=four_bit, **options)
        four_bit.weight, four_bit.bias = weight.to(linear.weight.device), linear.bias
        model.set_submodule(name, four_bit)
    model.is_loaded_in_4bit = True  # what peft asks


def _modules(plan: TrainingPlan):
    """The plan's targets as modules are named."""
    return plan.targets if plan.targets == "all-linear" else [f"{n.strip()}_proj" for n in plan.targets.split(",")]


def _upcast(model: nn.Module) -> None:
    """What prepare_model_for_kbit_training does: float32 for every 16-bit parameter that is left."""
    for parameter in model.parameters():
        if parameter.dtype in (torch.bfloat16, torch.float16):
            parameter.data = parameter.data.float()


def _make_fake(model: nn.Module) -> nn.Module:
    """Fake CPU tensors in the place of meta ones; tied parameters stay tied."""
    made: dict[int, torch.Tensor] = {}
    for module in model.modules():
        for name, old in list(module.named_parameters(recurse=False, remove_duplicate=False)):
            if id(old) not in made:
                made[id(old)] = nn.Parameter(torch.empty(old.shape, dtype=old.dtype, device="cpu"), old.requires_grad)
            module._parameters[name] = made[id(old)]
        for name, old in list(module.named_buffers(recurse=False)):
            module._buffers[name] = torch.empty(old.shape, dtype=old.dtype, device="cpu")
    return model


def make_optimizer(module: nn.Module, plan: TrainingPlan) -> torch.optim.Optimizer:
    """The plan's optimizer over the parameters that take a gradient."""
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    if plan.optimizer == "sgd":
        return torch.optim.SGD(trained, lr=1e-4)
    if plan.optimizer == "adamw8bit":
        from bitsandbytes.optim import AdamW8bit

        return AdamW8bit(trained, lr=1e-4)
    loop = {"foreach": dict(foreach=True), "single": dict(foreach=False), "fused": dict(fused=True)}
    return adamw(trained, plan.precision, lr=1e-4, **loop[plan.optimizer_loop])


def _base_dtype(plan: TrainingPlan) -> torch.dtype:
    return torch.float32 if plan.regime.weights == 4 else _half(plan)


def _half(plan: TrainingPlan) -> torch.dtype:
    """The plan's 16-bit format: 4-bit weights are computed in it whatever the rest has."""
    return getattr(torch, plan.regime.half)


@contextlib.contextmanager
def _default_dtype(dtype: torch.dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
