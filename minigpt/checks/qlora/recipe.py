"""Judging the options of a QLoRA run: each dictionary goes to the library that takes it, and its effect is looked at.

    quantization(options)                                    BitsAndBytesConfig, and a small llama loaded with it
    adapters(options, (rank, alpha))                         LoraConfig, and the same llama with its adapters
    training(options, (batch, accumulation, steps, lr))      TrainingArguments, as they understood it

``options`` is the student's function. An option that a library does not know, or silently drops, is named.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache
from typing import Any

import torch

from minigpt.checks.calling import call, first_sentence, name_of, silence
from minigpt.checks.comparing import show, whole
from minigpt.checks.probes import options as probed
from minigpt.checks.verdict import Wrong
from minigpt.real import OURS, SEVEN, save_tiny_llama

BITS: dict[str, tuple[Any, dict]] = {
    "bnb_4bit_quant_type": ("nf4", {"fp4": "fp4 is the default; the codes made for normal weights are nf4"}),
    "bnb_4bit_use_double_quant": (True, {False: "the scales stay float32, which is the default: 4.5 bits per weight"}),
    "bnb_4bit_compute_dtype": (torch.bfloat16, {
        torch.float32: "matrices are made float32 for each product; that is the default, slow, and 4 bytes per number",
        torch.float16: "float16 overflows where bfloat16 does not, and Trainer's autocast will be bfloat16",
    }),
}  # fmt: skip
OPTIMIZERS = {
    "adamw_torch": "that is torch's AdamW, 8 bytes per parameter", "adamw_torch_fused": "that is the default: torch's "
    "AdamW, 8 bytes per parameter", "adamw_bnb_8bit": "8 bits, but not paged", "adamw_8bit": "8 bits, but not paged",
    "paged_adamw": "paged, but with 32-bit state", "paged_adamw_32bit": "paged, but with 32-bit state",
}  # fmt: skip
ELSEWHERE = {  # options that name a file or a module, when they are texts
    "deepspeed", "fsdp", "fsdp_config", "accelerator_config", "logging_dir",
    "parallelism_config", "resume_from_checkpoint", "lr_scheduler_kwargs", "optim_args", "liger_kernel_config",
}  # fmt: skip
TRAINED = {  # options of TrainingArguments that change what is trained, and that stay as they are
    "max_grad_norm": "clipping", "weight_decay": "weight decay", "adam_beta1": "the first moment's decay",
    "adam_beta2": "the second moment's decay", "adam_epsilon": "AdamW's epsilon",
    "label_smoothing_factor": "smoothed labels", "neftune_noise_alpha": "noise on the embeddings",
}  # fmt: skip


def quantization(options: Callable) -> None:
    """``options()`` must load a model as QLoRA wants it."""
    from bitsandbytes.nn import Linear4bit
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    given, what = _dictionary(options), "quantization_options()"
    for name, allowed in (("load_in_8bit", (None, False)), ("quant_method", (None, "bitsandbytes"))):
        if given.get(name) not in allowed:
            raise Wrong("not-4-bit", f"{what}: {name} is {show(given[name])}; QLoRA's base has 4 bits: load_in_4bit")
    config = _build(BitsAndBytesConfig, given, what)
    if not config.load_in_4bit:
        raise Wrong("not-quantized", f"{what}: nothing is quantized; load_in_4bit is False unless you say True")
    for name, (right, mistakes) in BITS.items():
        found = getattr(config, name)
        if found != right:
            raise Wrong(_id(name), f"{what}: {name} is {show(found)}; {mistakes.get(found, f'{right!r} is asked for')}")
    with silence():
        model = AutoModelForCausalLM.from_pretrained(
            _tiny(), quantization_config=config, dtype=torch.bfloat16, device_map={"": "cpu"}
        )
    for name, layer in _matrices(model.model).items():
        if not isinstance(layer, Linear4bit):
            skipped = "; leave llm_int8_skip_modules alone" if given.get("llm_int8_skip_modules") else ""
            raise Wrong(
                "matrix-not-4-bit", f"{what}: {name} is a {type(layer).__name__} after loading, not 4 bits{skipped}"
            )
        weight: Any = layer.weight
        if weight.quant_storage != torch.uint8:
            raise Wrong("quant-storage", f"{what}: codes are stored as {weight.quant_storage}; leave it torch.uint8")
    if isinstance(model.lm_head, Linear4bit):
        raise Wrong("head-quantized", f"{what}: the head is in 4 bits; leave llm_int8_skip_modules alone")


def adapters(options: Callable, case: tuple[int, int]) -> None:
    """``options(rank, alpha)`` must adapt every matrix of a llama's blocks."""
    rank, alpha = case
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    given, what = _dictionary(options, rank, alpha), f"adapter_options({rank}, {alpha})"
    config = _build(LoraConfig, given, what)
    if (config.r, config.lora_alpha) == (alpha, rank):
        raise Wrong("rank-and-alpha", f"{what}: r and lora_alpha are swapped")
    for name, found, right in (("r", whole(config.r, f"{what}: r"), rank), ("lora_alpha", config.lora_alpha, alpha)):
        if found != right:
            default = "the default, " if name not in given else ""
            raise Wrong(_id(name), f"{what}: {name} is {show(found)}, {default}not {right}")
    if config.task_type != "CAUSAL_LM":
        raise Wrong("task-type", f"{what}: task_type is {config.task_type!r}; 'CAUSAL_LM' is asked for")
    kept = dict(lora_dropout=0.0, bias="none", use_rslora=False, use_dora=False, use_qalora=False,
                megatron_config=None)  # fmt: skip
    for name, usual in kept.items():
        if getattr(config, name) != usual:
            raise Wrong(_id(name), f"{what}: {name} is {getattr(config, name)!r}; leave it at its default, {usual!r}")
    if config.init_lora_weights is not True and config.init_lora_weights != "gaussian":
        raise Wrong(
            "init-lora-weights",
            f"{what}: init_lora_weights is {show(config.init_lora_weights)}; QLoRA's adapters add "
            "nothing at the start, B = 0, and leave the base alone: True, the default",
        )
    with silence():
        model = AutoModelForCausalLM.from_pretrained(_tiny(), dtype=torch.bfloat16, device_map={"": "cpu"})
        try:
            model = call(get_peft_model, model, config, twice=False, untouched=False)  # which may never end
        except Wrong as verdict:
            if verdict.id != "raises-valueerror":
                raise
            error = verdict.__cause__
            raise Wrong("peft-refuses", f"{what}: peft refuses it: {first_sentence(str(error))}") from error
    found = {name.split(".")[-1] for name, m in model.named_modules() if hasattr(m, "lora_A") and "layers." in name}
    if hasattr(model.base_model.model.lm_head, "lora_A"):
        raise Wrong("head-adapted", f"{what}: the head has an adapter; only the matrices of the blocks do")
    if missing := [name for name in SEVEN if name not in found]:
        default = "; peft's own default is q_proj and v_proj" if found == {"q_proj", "v_proj"} else ""
        raise Wrong(
            "targets", f"{what}: no adapter on {', '.join(missing)}{default}; every matrix of the blocks gets one"
        )
    for name, layer in _matrices(model.base_model.model.model).items():
        if not hasattr(layer, "lora_A"):
            raise Wrong("matrix-not-adapted", f"{what}: {name} has no adapter; the matrices of every block have one")
        found, scaling = tuple(layer.lora_A["default"].weight.shape), layer.scaling["default"]
        if found != (rank, layer.in_features) or scaling != alpha / rank:
            raise Wrong(
                "other-shape",
                f"{what}: {name} has an A of {found} and a scaling of {scaling:g}; "
                f"({rank}, {layer.in_features}) and alpha / rank are asked for",
            )
    _trains_adapters(model, config, what)


def _trains_adapters(model: torch.nn.Module, config, what: str) -> None:
    """Exactly A and B take a gradient."""
    ends = (".lora_A.default.weight", ".lora_B.default.weight")
    if config.inference_mode:
        raise Wrong("inference-mode", f"{what}: inference_mode is True: no adapter takes a gradient")
    for name, parameter in model.named_parameters():
        if name.endswith(ends) and not parameter.requires_grad:
            raise Wrong("adapters-frozen", f"{what}: {name} takes no gradient")
        if parameter.requires_grad and not name.endswith(ends):
            options = ("modules_to_save", "trainable_token_indices", "lora_bias")
            given = [option for option in options if getattr(config, option, None)]
            why = f"; leave {', '.join(given)} out" if given else ""
            short = name.removeprefix("base_model.model.")
            raise Wrong("not-frozen", f"{what}: {short} takes a gradient; only A and B of the blocks' matrices do{why}")


def training(options: Callable, case: tuple[int, int, int, float]) -> None:
    """``options(batch, accumulation, steps, lr)`` as TrainingArguments understands it."""
    batch, accumulation, steps, lr = case
    from transformers import TrainingArguments

    given = _dictionary(options, batch, accumulation, steps, lr)
    what = f"training_options({batch}, {accumulation}, {steps}, {lr:g})"
    if given.get("eval_strategy", "no") != "no":
        raise Wrong(
            "eval-strategy",
            f"{what}: eval_strategy is {show(given['eval_strategy'])}; Trainer gets no data to "
            "evaluate on, and the lab does that before and after: leave it out",
        )
    if not isinstance(rate := given.get("learning_rate", 0), (int, float)):
        raise Wrong(
            "learning-rate", f"{what}: learning_rate is {rate!r}, of type {type(rate).__name__}; a number is asked for"
        )
    ours = {**OURS, "output_dir": tempfile.gettempdir(), "use_cpu": True}
    arguments = _build(TrainingArguments, {**given, **ours}, what)
    sizes = arguments.per_device_train_batch_size, arguments.gradient_accumulation_steps
    if accumulation > 1 and sizes == (batch * accumulation, 1):
        raise Wrong(
            "no-accumulation",
            f"{what}: all {batch * accumulation} sequences go through the model at once; accumulation "
            "is what keeps the activations of only one micro-batch",
        )
    if sizes == (accumulation, batch) != (batch, accumulation):
        raise Wrong("batch-and-accumulation", f"{what}: batch and accumulation are swapped")
    wanted = {"per_device_train_batch_size": batch, "gradient_accumulation_steps": accumulation, "max_steps": steps}
    for name, right in wanted.items():
        found = whole(getattr(arguments, name), f"{what}: {name}")
        if found != right:
            default = ", the default" if name not in given else ""
            raise Wrong(_id(name), f"{what}: {name} is {found}{default}, not {right}")
    if not abs(arguments.learning_rate - lr) <= 1e-6 * lr:  # it may have been a float32
        default = ", the default" if "learning_rate" not in given else ""
        raise Wrong("learning-rate", f"{what}: learning_rate is {arguments.learning_rate:g}{default}, not {lr:g}")
    usual = {field.name: field.default for field in fields(TrainingArguments)}
    for name, thing in TRAINED.items():
        if (found := getattr(arguments, name)) != usual[name]:
            raise Wrong(_id(name), f"{what}: {name} is {show(found)}: {thing} is not asked for; leave it {usual[name]}")
    if arguments.fp16:
        raise Wrong("fp16", f"{what}: fp16 is on; it needs a loss scaler that bf16 does without")
    if not arguments.bf16:
        raise Wrong("bf16", f"{what}: bf16 is False, the default: products then take and keep float32 inputs")
    optimizer = arguments.optim.value
    if optimizer != "paged_adamw_8bit":
        raise Wrong("optim", f"{what}: optim is {optimizer!r}: {OPTIMIZERS.get(optimizer, 'another optimizer')}")
    if arguments.gradient_checkpointing:
        raise Wrong(
            "gradient-checkpointing", f"{what}: gradient_checkpointing is on; the lab turns it on for one run, not here"
        )


def _id(option: str) -> str:
    """A verdict about an option has its name."""
    return option.replace("_", "-")


def _dictionary(options: Callable, *args) -> dict:
    given = probed.given(options, *args)
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise Wrong("wrong-type", f"{name_of(options)} returns a {type(given).__name__}; a dictionary is asked for")
    for name, value in given.items():
        if not _travels(value):
            raise Wrong(
                "cannot-travel",
                f"{name_of(options)}: {name} is a {type(value).__name__}, which cannot go to another "
                "process; give a number, a text, True or False, or several of them",
            )
        if name in ELSEWHERE and isinstance(value, str):
            raise Wrong(_id(name), f"{name_of(options)}: {name} is {show(value)}; no other file is read: leave it out")
    return dict(given)


def _matrices(decoder: torch.nn.Module) -> dict[str, Any]:
    """The seven matrices of every block of a llama, by their names."""
    return {name: m for name, m in decoder.named_modules() if "layers." in name and name.split(".")[-1] in SEVEN}


def _travels(value) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_travels, value))
    if isinstance(value, dict):
        return all(isinstance(key, str) and _travels(content) for key, content in value.items())
    return value is None or isinstance(value, (bool, int, float, str, torch.dtype))


def _build(kind: type, given: dict, what: str):
    """``kind(**given)``; Wrong for an option that it does not know, drops, or refuses."""
    with silence():
        try:
            built = kind(**given)
        except TypeError as error:
            unknown = re.search(r"unexpected keyword argument '(\w+)'", str(error))
            reason = f"{kind.__name__} has no option {unknown[1]!r}" if unknown else str(error)
            raise Wrong("unknown-option", f"{what}: {reason}") from error
        except (ValueError, AttributeError, ImportError) as error:
            said = first_sentence(str(error).split(", please select")[0])  # and then 50 names
            raise Wrong("refused", f"{what}: {kind.__name__} refuses it: {said}") from error
    if dropped := [name for name in given if not hasattr(built, name)]:  # BitsAndBytesConfig only logs them
        raise Wrong("unknown-option", f"{what}: {kind.__name__} has no option {dropped[0]!r}")
    return built


@cache
def _folder() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory(prefix="tiny-llama-")


@cache
def _tiny() -> str:
    with silence():
        return save_tiny_llama(_folder().name)
