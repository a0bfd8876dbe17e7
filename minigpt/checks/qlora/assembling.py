"""Judging a QLoRA model that a student put together from ``minigpt.nf4`` and ``minigpt.lora``.

    assembled(assemble, (config, rank, alpha), upcast)      on a fresh MiniGPT in bfloat16

The parts are looked at one by one: what is in 4 bits and what is not, the types of the rest, the adapters, who takes a
gradient. What comes out is compared with a plain MiniGPT in float32 whose weights are the dequantized ones, plus
s B A. The order in which the student did things is not judged, but that weights are quantized as they are.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from minigpt.checks.adapters.layer import frozen, scales, values
from minigpt.checks.comparing import close, same, show
from minigpt.checks.probes import parts, unless_wrong
from minigpt.checks.verdict import Wrong
from minigpt.lora import LoRALinear
from minigpt.model import GPT, GPTConfig
from minigpt.nf4 import NF4Linear, dequantize, quantize

KEPT = "embeddings and norms stay as they are, and the head is the token embedding"
ADAPTER, FOUR_BIT, LINEAR, MODEL = (
    f"{kind.__module__}.{kind.__qualname__}" for kind in (LoRALinear, NF4Linear, nn.Linear, GPT)
)


def assembled(assemble: Callable, case: tuple[GPTConfig, int, float], upcast: bool) -> None:
    """``assemble(model, rank, alpha, upcast)``: the model, its block matrices in NF4, with adapters."""
    config, rank, alpha = case
    what = f"assemble(model, {rank}, {alpha:g}, upcast={upcast})"
    torch.manual_seed(rank)
    plain = GPT(config).to(torch.bfloat16)
    linears = {n: m for n, m in plain.named_modules() if isinstance(m, nn.Linear) and n != "lm_head"}
    adapters = {}
    for i, (name, linear) in enumerate(linears.items()):
        A, B = values((rank, linear.in_features), 1000 * i), values((linear.out_features, rank), 1000 * i)
        adapters[name] = A, 0.1 * B  # close to what training makes of it
    tokens = torch.randint(config.vocab_size, (2, config.context))  # (B, T)
    said = parts.assembled(assemble, copy.deepcopy(plain), rank, alpha, upcast, adapters, tokens)
    if MODEL not in said["kinds"]:
        raise Wrong("wrong-type", f"{what} returns a {_short(said['kinds'])}; the model is asked for")
    if said["given"] is not True:
        raise Wrong(
            "other-model", f"{what} returns another model than the one it was given; it is asked to change that one"
        )
    _head(said, what)
    for name in linears:
        _kinds(said["layers"][name], name, what)
    for name, linear in linears.items():
        _four_bits(said["layers"][name], linear.weight, f"{what}: {name}")
        _adapter(said["layers"][name], rank, alpha, f"{what}: {name}")
    if not said["own"]:
        raise Wrong("shared-adapter", f"{what}: several layers share one adapter; each needs its own")
    _rest(said["parameters"], plain, torch.float32 if upcast else torch.bfloat16, what)
    frozen(said["trained"], {f"{name}.{part}" for name in linears for part in ("lora_A", "lora_B")}, what)
    if not said["training"]:
        raise Wrong("other-mode", f"{what}: the model is left in evaluation mode; it was in training mode before")
    _outputs(said, plain.float(), adapters, tokens, alpha / rank, what)


def _head(said: dict, what: str) -> None:
    head = said["layers"]["lm_head"]
    if FOUR_BIT in head["kinds"] or FOUR_BIT in head["base"]["kinds"]:
        raise Wrong("head-quantized", f"{what}: the head is quantized; {KEPT}")
    if ADAPTER in head["kinds"]:
        raise Wrong("head-adapted", f"{what}: the head has an adapter; only the matrices of the blocks do")
    if said["tied"] is not True:
        raise Wrong("untied", f"{what}: the head is no longer tied to the token embedding: its weight is stored twice")


def _kinds(layer: dict, name: str, what: str) -> None:
    """It is an adapted layer on 4 bits."""
    if FOUR_BIT in layer["kinds"]:
        raise Wrong(
            "not-adapted",
            f"{what}: {name} has no adapter; every matrix of the blocks gets one, and inject's own default is q_proj "
            "and v_proj",
        )
    if LINEAR in layer["kinds"]:
        raise Wrong("untouched", f"{what}: {name} is neither in 4 bits nor adapted")
    if ADAPTER not in layer["kinds"]:
        raise Wrong(
            "other-layer", f"{what}: {name} is a {_short(layer['kinds'])}; a LoRALinear of minigpt.lora is asked for"
        )
    if FOUR_BIT not in layer["base"]["kinds"]:
        raise Wrong(
            "not-quantized",
            f"{what}: under the adapter of {name} lies a {_short(layer['base']['kinds'])}, not 4 bits; "
            "quantize_model takes the model's nn.Linear layers, and replaces them",
        )


def _short(kinds: list[str]) -> str:
    return kinds[0].rpartition(".")[2]


def _four_bits(layer: dict, weight: Tensor, what: str) -> None:
    """The bytes are those of the weight, the scales are quantized too, and products are made in bfloat16."""
    base, right = layer["base"], quantize(weight, double_quantization=True)
    if layer["codes"] is None or layer["offset"] is None:
        raise Wrong(
            "float32-scales",
            f"{what}: its scales are float32, 4.5 bits per weight; double_quantization stores them in 8 bits",
        )
    if base["block"] != right.block:
        raise Wrong("other-block", f"{what}: {base['block']} weights share a scale; {right.block} are asked for")
    stored = [layer[part] for part in ("codes", "absmax", "offset")]
    if not same(layer["packed"], right.packed) or not same(stored, list(right.absmax)):
        raise Wrong(
            "other-weight", f"{what}: its 4 bits are not those of the base's weight; quantize it once, as it is"
        )
    if base["dtype"] != torch.bfloat16:
        raise Wrong(
            "quantized-wide",
            f"{what}: its weight was made {base['dtype']} before it was quantized; quantize the bfloat16 weight as it "
            "is: of a large model there is no room for a wider copy",
        )
    if base["compute_dtype"] != torch.bfloat16:
        taken = "the type of its input" if base["compute_dtype"] is None else str(base["compute_dtype"])
        raise Wrong("compute-dtype", f"{what}: it computes in {taken}; compute_dtype is torch.bfloat16")


def _adapter(layer: dict, rank: int, alpha: float, what: str) -> None:
    if (layer["rank"], layer["alpha"]) == (alpha, rank):
        raise Wrong("rank-and-alpha", f"{what}: rank and alpha are swapped")
    if layer["rank"] != rank:
        raise Wrong("other-rank", f"{what}: the adapter's rank is {layer['rank']}, not {rank}")
    if layer["kind"] != "lora" or layer["scaling"] != alpha / rank:
        named = ((id, f": {sentence}") for id, (sentence, s) in scales(rank, alpha).items() if layer["scaling"] == s)
        id, hint = next(named, ("other-scale", ""))
        raise Wrong(id, f"{what}: its scaling is {show(layer['scaling'])}, not alpha / rank{hint}")
    if layer["dropout"]:
        raise Wrong("dropout", f"{what}: it has a dropout of {show(layer['dropout'])}; none is asked for")
    for part in ("lora_A", "lora_B"):
        if layer[part].dtype != torch.float32:
            raise Wrong(
                "adapter-dtype",
                f"{what}: its adapter is {layer[part].dtype}; adapters are float32 on any base, as in peft",
            )
    if layer["merged"]:
        raise Wrong("merged", f"{what}: its adapter is merged already; then it is idle, and nothing can be trained")
    if layer["lora_B"].any():
        raise Wrong("b-not-zero", f"{what}: B is not zeros at the start, so training does not start from the base")
    if not layer["lora_A"].any():
        raise Wrong("a-zero", f"{what}: A and B are both zeros at the start: then neither ever gets a gradient")


def _rest(parameters: dict[str, Tensor], plain: GPT, dtype: torch.dtype, what: str) -> None:
    """Embeddings and norms: the base's values, in ``dtype``."""
    for name, before in plain.named_parameters():
        if name.endswith("_proj.weight"):
            continue
        if name not in parameters:
            raise Wrong("rest-missing", f"{what}: there is no parameter {name} any more; {KEPT}")
        found = parameters[name]
        if found.dtype != dtype:
            id, why = (("not-upcast", "upcast turns what is left in 16 bits into float32") if dtype == torch.float32
                       else ("upcast", "without upcast it stays as it was"))  # fmt: skip
            raise Wrong(id, f"{what}: {name} is {found.dtype}; {why}")
        if not same(found.float(), before.detach().float()):
            raise Wrong("rest-changed", f"{what}: {name} has other values than the base's")


def _outputs(said: dict, plain: GPT, adapters: dict, tokens: Tensor, scale: float, what: str) -> None:
    """Logits at the start, and with other adapters, beside those of a float32 model with the same weights."""
    for name in adapters:
        weight = plain.get_parameter(f"{name}.weight")
        weight.data = dequantize(quantize(weight.to(torch.bfloat16), double_quantization=True), torch.float32)
    with torch.no_grad():
        start = plain(tokens)
        for name, (A, B) in adapters.items():
            plain.get_parameter(f"{name}.weight").data += scale * B @ A
        adapted = plain(tokens)
    near: dict[str, Any] = dict(rtol=3e-2, atol=3e-2)
    which = "at the start, beside those of the dequantized base"
    close(unless_wrong(said.get("start")), start, f"{what}: the logits {which}", **near)
    idle = {"adapters-idle": ("the adapters change nothing", start)}
    close(unless_wrong(said.get("adapted")), adapted, f"{what}: the logits with other adapters", wrong=idle, **near)
