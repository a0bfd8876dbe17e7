"""What a model is made of, from its configuration alone: every parameter tensor, by name and shape.

A configuration is a MiniGPT ``GPTConfig``, a Hugging Face ``config.json`` (as a path, a dictionary or an
``AutoConfig``), or a name or Hub id that ``names.resolve`` reads. Each family is a file of this folder: a class that
reads its configuration, lists its tensors, and runs its forward pass on the tape.

Left out: multimodal parts, cross-attention. This file imports no torch.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from math import prod
from typing import Any, ClassVar, NamedTuple

from minigpt.memory.engine import ops
from minigpt.memory.engine.layers import Layers
from minigpt.memory.engine.tape import Value
from minigpt.memory.families.fields import check_fields
from minigpt.memory.names import resolve
from minigpt.values import check_choice, check_counts, check_flags

FAMILIES = {  # model_type: module and class
    "minigpt": "minigpt:MiniGPT",
    "llama": "llama:Llama",
    "mistral": "mistral:Mistral",
    "qwen2": "qwen2:Qwen2",
    "qwen3": "qwen3:Qwen3",
    "qwen3_moe": "qwen3_moe:Qwen3Moe",
    "qwen2_moe": "qwen2_moe:Qwen2Moe",
    "mixtral": "mixtral:Mixtral",
    "deepseek_v3": "deepseek_v3:DeepseekV3",
    "gpt_oss": "gpt_oss:GptOss",
    "phi3": "phi3:Phi3",
    "phi": "phi:Phi",
    "gemma": "gemma:Gemma",
    "gemma2": "gemma2:Gemma2",
    "gemma3_text": "gemma3:Gemma3",
    "gpt2": "gpt2:GPT2",
    "granite": "granite:Granite",
    "smollm3": "smollm3:SmolLM3",
    "olmo2": "olmo2:Olmo2",
    "starcoder2": "starcoder2:Starcoder2",
    "gpt_neox": "gpt_neox:GPTNeoX",
    "falcon": "falcon:Falcon",
    "opt": "opt:OPT",
    "bloom": "bloom:Bloom",
}
OTHERS = {"cs336": "cs336:CS336"}  # families that transformers has not, which check their own fields
MOST_LAYERS = 1000  # every layer is gone through, so a larger number would not return


class Tensor(NamedTuple):
    """One parameter tensor of a model: its name, its shape, and what kind of layer owns it."""

    name: str
    shape: tuple[int, ...]
    kind: str  # "embedding", "linear", "bias", "norm" or "head"; in a mixture also "experts" (E, out, in) and "router"

    @property
    def numel(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """The sizes that memory depends on. All fields are counts or switches, none is bytes. Families add their own."""

    family: str
    vocab_size: int
    n_layer: int
    n_embd: int  # width of the residual stream
    n_head: int  # query heads
    n_kv_head: int  # key and value heads; fewer than n_head is grouped-query attention
    head_dim: int
    n_inner: int  # inner width of the MLP
    context: int  # longest sequence the model takes
    tied: bool  # the head is the token embedding

    product: ClassVar[Callable[..., Value]] = staticmethod(ops.linear)  # a layer of the blocks: (x, weight, bias)

    sharded_by: ClassVar[Callable | None] = None  # what lays out its weights on a rank, where that is not fully_shard

    def __post_init__(self) -> None:
        check_choice({**FAMILIES, **OTHERS}, family=self.family)
        check_counts(most=MOST_LAYERS, n_layer=self.n_layer)
        counts = ("vocab_size", "n_embd", "n_head", "n_kv_head", "head_dim", "n_inner", "context")
        check_counts(**{name: getattr(self, name) for name in counts})
        check_flags(tied=self.tied)
        if self.n_head % self.n_kv_head:
            raise ValueError(f"n_kv_head is {self.n_kv_head}; it must divide n_head, which is {self.n_head}")

    @staticmethod
    def of(source) -> Architecture:
        """From an Architecture, a GPTConfig, an AutoConfig, a config.json's contents, or what ``resolve`` reads."""
        if isinstance(source, Architecture):
            return source
        if isinstance(source, (str, os.PathLike)):
            source = resolve(source)
        if hasattr(source, "to_dict"):  # transformers' PretrainedConfig
            source = source.to_dict()
        if isinstance(source, dict):
            family = source.get("model_type")
            if family in OTHERS:
                return family_class(family).read(source)
            if family not in FAMILIES or family == "minigpt":
                allowed = ", ".join(name for name in FAMILIES if name != "minigpt")
                raise ValueError(f"model_type is {family!r}; allowed: {allowed}")
            return family_class(family).read(check_fields(family, source))
        if all(hasattr(source, name) for name in ("n_layer", "n_embd", "n_head", "context", "vocab_size")):
            return family_class("minigpt").read(source)
        raise ValueError(
            f"the model is {source!r}; allowed: a GPTConfig, a Hugging Face configuration (dictionary, object or "
            "path of a config.json), a Hub id or a known name such as llama-7b"
        )

    # ------------------------------------------------------------ what a family says

    @classmethod
    def read(cls, config: Any) -> Architecture:
        """From a GPTConfig, or what ``check_fields`` returns. Raises ValueError for a bad value, naming the field."""
        raise NotImplementedError

    def block_tensors(self, layer: int = 0) -> tuple[Tensor, ...]:
        """The parameter tensors of one block, in the order of the real model; linear weights as (out, in)."""
        raise NotImplementedError

    @property
    def in_a_row(self) -> bool:
        """Whether blocks can run as one, each given what the one before returned and all the same beside it."""
        return False

    def kinds_of_block(self) -> tuple[int, ...]:
        """A layer of each kind of block that the model has."""
        return (0,)

    def outer_tensors(self) -> tuple[list[Tensor], list[Tensor]]:
        """The parameter tensors before the blocks, and those after them without the head."""
        return [Tensor("embedding", (self.vocab_size, self.n_embd), "embedding")], norm("norm", self.n_embd)

    def loss(self, layers: Layers, tokens: Value, targets: Value) -> Value:
        """The forward pass on the tape: tokens and targets (B, T), to the mean loss."""
        raise NotImplementedError

    def buffers(self) -> list[int]:
        """Bytes of each tensor of the model that is no parameter and no constant."""
        return []

    def constants(self) -> dict[str, tuple[int, ...]]:
        """The shapes of what is no parameter, but in the weights' own precision, by name."""
        return {}

    def adapter_rank(self, tensor: Tensor, plan, targets: set[str]) -> int:
        """The rank of the adapter that peft gives to ``tensor``, or 0; ``targets`` are the names of the plan's."""
        adapted = tensor.kind in ("linear", "head") and tensor.name.rsplit(".", 1)[-1] in targets
        return plan.rank if adapted else 0

    def check(self, plan) -> None:
        """Raise ValueError for a plan that the family does not cover."""

    # ------------------------------------------------------------ what follows

    @property
    def head_width(self) -> int:
        return self.n_embd

    def tensors(self) -> tuple[Tensor, ...]:
        """Every parameter tensor, in the order of the real model; a tied head appears once, as the embedding."""
        first, last = self.outer_tensors()
        out = list(first)
        for i in range(self.n_layer):
            out += [Tensor(f"blocks.{i}.{t.name}", t.shape, t.kind) for t in self.block_tensors(i)]
        out += last
        if not self.tied:
            out.append(Tensor("head", (self.vocab_size, self.head_width), "head"))
        return tuple(out)

    @property
    def parameters(self) -> int:
        """The number of parameters; each tensor counts once."""
        return sum(t.numel for t in self.tensors())

    @property
    def linear_parameters(self) -> int:
        """Parameters in the matrices of the blocks: what adapters adapt and 4-bit formats quantize."""
        return sum(t.numel for t in self.tensors() if t.kind == "linear")


def family_class(family: str) -> type[Architecture]:
    """The class of a model_type, imported when it is first asked for."""
    module, _, name = {**FAMILIES, **OTHERS}[family].partition(":")
    return getattr(import_module(f"minigpt.memory.families.{module}"), name)


def linear(name: str, n_out: int, n_in: int, bias: bool = False) -> list[Tensor]:
    """A matrix, and its bias if it has one."""
    return [Tensor(name, (n_out, n_in), "linear")] + ([Tensor(f"{name}.bias", (n_out,), "bias")] if bias else [])


def norm(name: str, width: int, bias: bool = False) -> list[Tensor]:
    """A norm's weight, and its bias if it has one."""
    return [Tensor(name, (width,), "norm")] + ([Tensor(f"{name}.bias", (width,), "bias")] if bias else [])


def divide(**counts) -> int:
    """The width of a head, from the model's width and the number of heads, each by its name in the file."""
    check_counts(**counts)
    (_, width), (name, heads) = counts.items()
    if width % heads:
        raise ValueError(f"{name} is {heads}; it must divide the width, which is {width}, or head_dim must be given")
    return width // heads
