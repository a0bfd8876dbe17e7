"""Judging a QLoRA model that a student put together from ``minigpt.nf4`` and ``minigpt.lora``.

    assembled(assemble, (config, rank, alpha), upcast)      on a fresh MiniGPT in bfloat16

The parts are looked at one by one: what is in 4 bits and what is not, the types of the rest, the adapters, who takes a
gradient. What comes out is compared with a plain MiniGPT in float32 whose weights are the dequantized ones, plus
s B A. The order in which the student did things is not judged.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from minigpt.checks.adapters.layer import fill, frozen, scales
from minigpt.checks.calling import call
from minigpt.checks.comparing import close, same
from minigpt.checks.probes.layers import trained
from minigpt.checks.verdict import Wrong
from minigpt.lora import LoRALinear
from minigpt.model import GPT, GPTConfig
from minigpt.nf4 import NF4Linear, Statistics, dequantize, quantize

KEPT = "embeddings and norms stay as they are, and the head is the token embedding"


def assembled(assemble: Callable, case: tuple[GPTConfig, int, float], upcast: bool) -> None:
    """``assemble(model, rank, alpha, upcast)``: the model, its block matrices in NF4, with adapters."""
    config, rank, alpha = case
    what = f"assemble(model, {rank}, {alpha:g}, upcast={upcast})"
    torch.manual_seed(rank)
    plain = GPT(config).to(torch.bfloat16)
    model = copy.deepcopy(plain)
    made = call(assemble, model, rank, alpha, upcast=upcast, twice=False, untouched=False)
    if not isinstance(made, GPT):
        raise Wrong("wrong-type", f"{what} returns a {type(made).__name__}; the model is asked for")
    if made is not model:
        raise Wrong(
            "other-model", f"{what} returns another model than the one it was given; it is asked to change that one"
        )
    names = [name for name, module in plain.named_modules() if isinstance(module, nn.Linear) and name != "lm_head"]
    _head(made, what)
    layers = {name: _layer(made, name, what) for name in names}
    for name, layer in layers.items():
        _four_bits(layer.base, plain.get_parameter(f"{name}.weight"), f"{what}: {name}")
        _adapter(layer, rank, alpha, f"{what}: {name}")
    _rest(made, plain, torch.float32 if upcast else torch.bfloat16, what)
    frozen(trained(made), {f"{name}.{part}" for name in names for part in ("lora_A", "lora_B")}, what)
    _outputs(made, plain.float(), layers, rank, alpha, what)


def _head(made: GPT, what: str) -> None:
    if isinstance(made.lm_head, NF4Linear) or isinstance(getattr(made.lm_head, "base", None), NF4Linear):
        raise Wrong("head-quantized", f"{what}: the head is quantized; {KEPT}")
    if isinstance(made.lm_head, LoRALinear):
        raise Wrong("head-adapted", f"{what}: the head has an adapter; only the matrices of the blocks do")
    if made.lm_head.weight is not made.token_embedding.weight:
        raise Wrong("untied", f"{what}: the head is no longer tied to the token embedding: its weight is stored twice")


def _layer(made: GPT, name: str, what: str) -> Any:
    """The adapted layer called ``name``."""
    layer = made.get_submodule(name)
    if isinstance(layer, NF4Linear):
        raise Wrong(
            "not-adapted",
            f"{what}: {name} has no adapter; every matrix of the blocks gets one, and inject's own default is q_proj "
            "and v_proj",
        )
    if isinstance(layer, nn.Linear):
        raise Wrong("untouched", f"{what}: {name} is neither in 4 bits nor adapted")
    if not isinstance(layer, LoRALinear):
        raise Wrong(
            "other-layer", f"{what}: {name} is a {type(layer).__name__}; a LoRALinear of minigpt.lora is asked for"
        )
    if not isinstance(layer.base, NF4Linear):
        raise Wrong(
            "not-quantized",
            f"{what}: under the adapter of {name} lies a {type(layer.base).__name__}, not 4 bits; "
            "quantize_model takes the model's nn.Linear layers, and replaces them",
        )
    return layer


def _four_bits(base: NF4Linear, weight: torch.Tensor, what: str) -> None:
    """The bytes are those of the weight, the scales are quantized too, and products are made in bfloat16."""
    found, right = base.quantized, quantize(weight, double_quantization=True)
    if not isinstance(found.absmax, Statistics):
        raise Wrong(
            "float32-scales",
            f"{what}: its scales are float32, 4.5 bits per weight; double_quantization stores them in 8 bits",
        )
    if found.block != right.block:
        raise Wrong("other-block", f"{what}: {found.block} weights share a scale; {right.block} are asked for")
    if not same(found.packed, right.packed) or not same(found.absmax, right.absmax):
        raise Wrong(
            "other-weight", f"{what}: its 4 bits are not those of the base's weight; quantize it once, as it is"
        )
    if base.compute_dtype != torch.bfloat16:
        taken = "the type of its input" if base.compute_dtype is None else str(base.compute_dtype)
        raise Wrong("compute-dtype", f"{what}: it computes in {taken}; compute_dtype is torch.bfloat16")


def _adapter(layer: LoRALinear, rank: int, alpha: float, what: str) -> None:
    if (layer.rank, layer.alpha) == (alpha, rank):
        raise Wrong("rank-and-alpha", f"{what}: rank and alpha are swapped")
    if layer.rank != rank:
        raise Wrong("other-rank", f"{what}: the adapter's rank is {layer.rank}, not {rank}")
    if layer.kind != "lora" or layer.scaling != alpha / rank:
        named = ((id, f": {sentence}") for id, (sentence, s) in scales(rank, alpha).items() if layer.scaling == s)
        id, hint = next(named, ("other-scale", ""))
        raise Wrong(id, f"{what}: its scaling is {layer.scaling:g}, not alpha / rank{hint}")
    if layer.dropout:
        raise Wrong("dropout", f"{what}: it has a dropout of {layer.dropout:g}; none is asked for")
    for part in (layer.lora_A, layer.lora_B):
        if part.dtype != torch.float32:
            raise Wrong(
                "adapter-dtype", f"{what}: its adapter is {part.dtype}; adapters are float32 on any base, as in peft"
            )


def _rest(made: GPT, plain: GPT, dtype: torch.dtype, what: str) -> None:
    """Embeddings and norms: the base's values, in ``dtype``."""
    for name, before in plain.named_parameters():
        if name.endswith("_proj.weight"):
            continue
        found = made.get_parameter(name)
        if found.dtype != dtype:
            id, why = (("not-upcast", "upcast turns what is left in 16 bits into float32") if dtype == torch.float32
                       else ("upcast", "without upcast it stays as it was"))  # fmt: skip
            raise Wrong(id, f"{what}: {name} is {found.dtype}; {why}")
        if not same(found.detach().float(), before.detach().float()):
            raise Wrong("rest-changed", f"{what}: {name} has other values than the base's")


def _outputs(made: GPT, plain: GPT, layers: dict[str, LoRALinear], rank: int, alpha: float, what: str) -> None:
    """Logits at the start, and with other adapters, beside those of a float32 model with the same weights."""
    config = plain.config
    tokens = torch.randint(config.vocab_size, (2, config.context))  # (B, T)
    for name in layers:
        weight = plain.get_parameter(f"{name}.weight")
        weight.data = dequantize(quantize(weight.to(torch.bfloat16), double_quantization=True), torch.float32)

    def compare(which: str) -> None:
        with torch.no_grad():
            close(made(tokens).float(), plain(tokens), f"{what}: the logits {which}", rtol=3e-2, atol=3e-2)

    compare("at the start, beside those of the dequantized base")
    for i, (name, layer) in enumerate(layers.items()):
        A, B = fill(layer, seed=i)
        plain.get_parameter(f"{name}.weight").data += 0.1 * alpha / rank * B @ A
        layer.lora_B.data *= 0.1  # close to what training makes of it
    compare("with other adapters")
