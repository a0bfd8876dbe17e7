"""The real model of a configuration, as transformers or this package builds it, before any adapter.

A model is a MiniGPT ``GPTConfig``; or a known name, a path of a config.json, its contents, or transformers'
configuration object, of any ``model_type`` that transformers can build with a head over a vocabulary. Weights are
random, or none at all on the meta device: memory does not depend on them.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from minigpt.memory.plan import TrainingPlan
from minigpt.sharding import Zero1

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel

    from minigpt.model import GPT

HEADS = ("CausalLM", "Seq2SeqLM", "MaskedLM", "ImageTextToText")  # transformers' AutoModelFor..., as they are tried
POSITIONS = {"position_embedding", "position_embeddings", "embed_positions", "wpe", "positions_embed"}
CONTEXTS = ("context", "max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "max_seq_length")


def base_dtype(plan: TrainingPlan) -> torch.dtype:
    """The dtype of the weights before anything is quantized or cast."""
    return torch.float32 if plan.regime.weights == 4 else half(plan)


def half(plan: TrainingPlan) -> torch.dtype:
    """The plan's 16-bit format: autocast and 4-bit weights compute in it whatever the rest has."""
    return getattr(torch, plan.regime.autocast or plan.regime.half)


def configuration(model):
    """A GPTConfig or transformers' configuration object. Raises ValueError for what transformers does not know."""
    from minigpt.model import GPTConfig

    if isinstance(model, GPTConfig):
        return model
    from transformers import AutoConfig, PretrainedConfig, __version__

    from minigpt.memory.names import resolve

    if isinstance(model, PretrainedConfig):
        return model
    if isinstance(model, (str, os.PathLike)):
        model = resolve(model)
    if not isinstance(model, dict):
        raise ValueError(
            f"the model is {model!r}; allowed: a GPTConfig, a Hugging Face configuration (dictionary, object or path "
            "of a config.json), a Hub id or a known name such as llama-7b"
        )
    if model.get("model_type") not in _model_types():
        raise ValueError(f"model_type is {model.get('model_type')!r}; transformers {__version__} builds no such model")
    try:
        return AutoConfig.for_model(**model)
    except Exception as error:  # each configuration class has checks of its own kind
        raise ValueError(f"transformers refuses this {model['model_type']} configuration: {error}") from None


def _model_types():
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    return CONFIG_MAPPING


def base_model(config, plan: TrainingPlan) -> GPT | PreTrainedModel:
    """The model in the plan's precision and attention, on the default device. ``config`` is from ``configuration``."""
    from minigpt.model import GPT, GPTConfig

    if isinstance(config, GPTConfig):
        with default_dtype(base_dtype(plan)):
            model = GPT(GPTConfig(**{**vars(config), "attention": plan.attention}))
        _check_context(model, plan)
        return model
    # None is transformers' own choice: sdpa, or eager for a model that has no other.
    attention = None if plan.attention == "sdpa" else plan.attention
    model = _head(config).from_config(config, dtype=base_dtype(plan), attn_implementation=attention)
    model.loss_type = model.loss_type or "ForCausalLM"  # gpt2's class names none: transformers takes this, and warns
    if model.main_input_name != "input_ids":
        raise ValueError(f"model_type is {config.model_type!r}, which reads {model.main_input_name}, not tokens")
    _check_context(model, plan)
    return model


def _head(config):
    """transformers' AutoModelFor... class: of the file's ``architectures``, or the first of HEADS that there is."""
    import transformers

    autos = [getattr(transformers, f"AutoModelFor{head}") for head in HEADS]
    if config.is_encoder_decoder:
        autos.sort(key=lambda auto: "Seq2Seq" not in auto.__name__)
    autos = [auto for auto in autos if type(config) in auto._model_mapping]
    named = [auto for auto in autos if auto._model_mapping[type(config)].__name__ in (config.architectures or ())]
    if not autos:
        raise ValueError(f"model_type is {config.model_type!r}; transformers has no model over a vocabulary for it")
    return (named or autos)[0]


def base_of(module: nn.Module) -> nn.Module:
    """The model itself, also where peft or a training of several ranks has wrapped it."""
    if isinstance(module, (DistributedDataParallel, Zero1)):
        module = module.module
    base = getattr(module, "get_base_model", None)
    return module if base is None else base()


def vocabulary(config) -> int:
    """How many tokens there are; a model of images and text keeps it in a part of its configuration."""
    return (config.get_text_config() if hasattr(config, "get_text_config") else config).vocab_size


def _check_context(model: GPT | PreTrainedModel, plan: TrainingPlan) -> None:
    """Raise ValueError for a sequence beyond a table of positions; rotary ones run on all the same."""
    config = model.config.get_text_config() if hasattr(model.config, "get_text_config") else model.config
    context = next((value for name in CONTEXTS if isinstance(value := getattr(config, name, None), int)), None)
    tables = [name for name, module in model.named_modules() if isinstance(module, nn.Embedding)]
    tables += [name for name, _ in model.named_buffers()]  # gptj's and codegen's rotations, made beforehand
    last = {name.rpartition(".")[2] for name in tables}
    if context and plan.seq_len > context and last & POSITIONS:
        raise ValueError(f"seq_len is {plan.seq_len}; the model's context is {context}, and learned")


def checkpoint_model(model: GPT | PreTrainedModel | PeftModel, plan: TrainingPlan) -> None:
    """By the plan's word: with transformers' own call for the two kinds that it is made for, or this package's."""
    from minigpt.checkpointing import checkpoint_blocks
    from minigpt.model import GPT

    if not isinstance(model, GPT) and plan.checkpointing in ("full", "reentrant"):
        kind = {"use_reentrant": plan.checkpointing == "reentrant"}
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=kind)
        return
    checkpoint_blocks(model, plan.checkpointing, every_n_layers=plan.every_n_layers)
    if not isinstance(model, GPT):
        model.enable_input_require_grads()  # as its own call does


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
