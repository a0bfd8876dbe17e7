"""Adapters on a real model: peft's on a Hugging Face one, this package's on MiniGPT."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import torch
from torch import nn

from minigpt.lora import inject
from minigpt.memory.measured.models import base_dtype, half
from minigpt.memory.measured.quantized import quantize
from minigpt.memory.plan import TrainingPlan
from minigpt.nf4 import quantize_model

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel

    from minigpt.model import GPT

# A word of the plan, and the ends of the names that modules have for it; beside them, a module's own last name, with
# or without "_proj".
WORDS = {
    "qkv": ("c_attn", "query_key_value", "qkv_proj", "Wqkv"),
    "o": ("out_proj", "attn.c_proj", "attention.dense", "self_attention.dense", "self_attn.dense"),
    "gate_up": ("gate_up_proj",),
    "up": ("fc1", "mlp.c_fc", "dense_h_to_4h", "fc_in"),
    "down": ("fc2", "mlp.c_proj", "dense_4h_to_h", "fc_out"),
}
NARROW = 16  # a layer with fewer outputs is a gate, which peft adapts at any rank


def adapt_minigpt(model: GPT, plan: TrainingPlan) -> GPT:
    """MiniGPT with this package's adapters, on its own 4-bit layers if the plan says so."""
    only = {"quantization": "nf4", "modules_to_save": ""}
    for name, value in only.items():
        if getattr(plan, name) != value:
            raise ValueError(f"{name} is {getattr(plan, name)!r}; MiniGPT has {value!r} only")
    if plan.checkpointing == "reentrant":
        raise ValueError("checkpointing is 'reentrant'; over MiniGPT's frozen embeddings nothing is trained")
    targets = target_modules(model, model.lm_head, plan)
    if plan.method == "qlora":
        quantize_model(model, double_quantization=plan.double_quantization, compute_dtype=half(plan))
        if plan.kbit_preparation:
            _upcast(model)
    dtype = torch.float32 if plan.adapter_dtype == "fp32" else base_dtype(plan)
    inject(model, plan.rank, targets=targets, kind=plan.variant, dropout=plan.lora_dropout, adapter_dtype=dtype)
    return model


def adapt(model: PreTrainedModel, plan: TrainingPlan) -> PeftModel:
    """A Hugging Face model with peft's adapters, on bitsandbytes' layers if the plan says so."""
    from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training

    own = plan.targets == "peft"  # left to it
    targets = None if own else target_modules(model, model.get_output_embeddings(), plan)
    if plan.method == "qlora":
        quantize(model, plan)
        if plan.kbit_preparation:
            model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
    adapters = LoraConfig(
        r=plan.rank, target_modules=targets, task_type="CAUSAL_LM", lora_dropout=plan.lora_dropout,
        use_rslora=plan.variant == "rslora", use_dora=plan.variant == "dora", modules_to_save=_saved(model, plan),
    )  # fmt: skip
    quantized, same = plan.method == "qlora", plan.adapter_dtype == "same"
    adapted = get_peft_model(model, adapters, autocast_adapter_dtype=quantized or not same)
    if same:
        _cast_adapters(adapted, plan)
    return adapted


def _cast_adapters(model: nn.Module, plan: TrainingPlan) -> None:
    """The base's dtype for the adapters.

    On a base in 16 bits it is peft's ``autocast_adapter_dtype=False``, which does nothing on the meta device.
    On a quantized base, where peft has no such option, it is what trl's SFTTrainer does afterwards (1.15,
    ``trainer/sft_trainer.py``): all but DoRA's lengths.
    """
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and not (plan.method == "qlora" and "lora_magnitude_vector" in name):
            parameter.data = parameter.data.to(base_dtype(plan))


def _saved(model: PreTrainedModel, plan: TrainingPlan) -> list[str] | None:
    """The names of the modules that are trained whole."""
    modules = {"embedding": model.get_input_embeddings(), "head": model.get_output_embeddings()}
    words = [word.strip() for word in plan.modules_to_save.split(",") if word.strip()]
    if not set(words) <= set(modules):
        raise ValueError(f"modules_to_save is {plan.modules_to_save!r}; allowed: embedding, head, or both with a comma")
    names = {module: name for name, module in model.named_modules()}
    return [names[modules[word]].rpartition(".")[2] for word in words] or None


def target_modules(model: nn.Module, head: nn.Module | None, plan: TrainingPlan) -> str | list[str]:
    """The plan's targets as the model's modules are named: "all-linear", or ends of names.

    "head" is the output head, also beside "all-linear". Raises ValueError for a name that no layer has, or a rank above
    the smallest side of a target.
    """
    linears = {
        name: shape for name, module in model.named_modules() if (shape := _shape(module)) and module is not head
    }
    words: dict[str, set[str]] = {}
    for name in linears:
        word, end = _word(name)
        words.setdefault(word, set()).add(end)
    asked = [word.strip().removesuffix("_proj") for word in plan.targets.split(",")]
    wrong = sorted(set(asked) - set(words) - {"all-linear", "head"})
    if wrong:
        allowed = ", ".join(sorted({*words, "head"}))
        raise ValueError(f"targets has {', '.join(wrong)!r}; allowed: all-linear, or some of {allowed}")
    everything = set().union(*words.values())
    ends = set().union(*(everything if word == "all-linear" else words.get(word, ()) for word in asked))
    sides = [min(shape) for name, shape in linears.items() if name.endswith(tuple(ends)) and min(shape) >= NARROW]
    if sides and plan.rank > min(sides):
        raise ValueError(f"rank is {plan.rank}; the smallest side of a target is {min(sides)}")
    if "head" in asked:
        if head is None:
            raise ValueError("targets has 'head'; this model has none")
        ends.add(next(name for name, module in model.named_modules() if module is head))
    return "all-linear" if asked == ["all-linear"] else sorted(ends)


def target_weights(model: nn.Module, plan: TrainingPlan) -> list[nn.Parameter]:
    """What GaLore projects: the weights of the plan's targets in the blocks, which have a number in their names."""
    from minigpt.model import GPT

    head = model.lm_head if isinstance(model, GPT) else model.get_output_embeddings()  # type: ignore[operator]
    ends = target_modules(model, head, plan)
    return [
        module.weight
        for name, module in model.named_modules()
        if _shape(module) and any(part.isdigit() for part in name.split("."))
        if ends == "all-linear" or name.endswith(tuple(ends))
    ]


def _shape(module: nn.Module) -> tuple[int, int] | None:
    """(out, in) of a linear layer; transformers' Conv1D is one too."""
    if isinstance(module, nn.Linear):
        return module.out_features, module.in_features
    transformers = sys.modules.get("transformers.pytorch_utils")
    if transformers is None or not isinstance(module, transformers.Conv1D):  # not loaded: no layer is its
        return None
    return module.nf, module.nx


def _word(name: str) -> tuple[str, str]:
    """The plan's word for a module, and the end of its name that says so."""
    for word, ends in WORDS.items():
        for end in ends:
            if f".{name}".endswith(f".{end}"):
                return word, end
    last = name.rpartition(".")[2]
    return last.removesuffix("_proj"), last


def _upcast(model: nn.Module) -> None:
    """What prepare_model_for_kbit_training does: float32 for every 16-bit parameter that is left."""
    for parameter in model.parameters():
        if parameter.dtype in (torch.bfloat16, torch.float16):
            parameter.data = parameter.data.float()
