"""A frozen base in few bits: bitsandbytes' layers in the place of a Hugging Face model's linear ones.

What transformers' ``load_in_4bit`` and ``load_in_8bit`` do: every linear layer but the head. On the meta device, layers
get tensors of the shapes that bitsandbytes makes, since it cannot quantize what has no values. Per weight:

    nf4     half a byte; an absmax for each 64, in float32, or in one byte with float32 ones for each 256 of those
    int8    one byte; a float32 scale for each row
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import torch
from torch import nn

from minigpt.memory.measured.models import half
from minigpt.memory.plan import TrainingPlan

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from transformers.pytorch_utils import Conv1D

OUTLIERS = 6.0  # transformers' llm_int8_threshold
BLOCK, BLOCK2 = 64, 256  # weights that share a scale, and scales that share one


def quantize(model: PreTrainedModel, plan: TrainingPlan) -> None:
    """Every linear layer but the head in the plan's format. Raises ValueError for a format that is not built here."""
    from transformers.pytorch_utils import Conv1D  # here, because importing transformers takes a second

    if plan.quantization not in ("nf4", "int8"):
        raise ValueError(f"quantization is {plan.quantization!r}, which is not measured: allowed: nf4, int8")
    make = _four_bit if plan.quantization == "nf4" else _eight_bit
    head = model.get_output_embeddings()
    for name, linear in list(model.named_modules()):
        if isinstance(linear, Conv1D):
            linear = _as_linear(linear)
        if isinstance(linear, nn.Linear) and linear is not head:
            model.set_submodule(name, make(linear, plan))
    setattr(model, "is_loaded_in_4bit" if plan.quantization == "nf4" else "is_loaded_in_8bit", True)  # what peft asks


def _as_linear(layer: Conv1D) -> nn.Linear:
    """gpt2's layer, whose weight is (n_in, n_out), as the linear layer that transformers makes of it."""
    n_in, n_out = layer.weight.shape
    linear = nn.Linear(n_in, n_out, device="meta")
    linear.weight = nn.Parameter(layer.weight.data.T.contiguous(), requires_grad=False)
    linear.bias = layer.bias
    return linear


def _four_bit(linear: nn.Linear, plan: TrainingPlan) -> nn.Module:
    from bitsandbytes.nn import Linear4bit, Params4bit

    double = plan.double_quantization
    layer = Linear4bit(
        linear.in_features, linear.out_features, linear.bias is not None, half(plan), compress_statistics=double,
        quant_type="nf4", device="meta",
    )  # fmt: skip
    layer.bias = linear.bias
    if linear.weight.is_meta:
        packed = _empty(-(-linear.weight.numel() // 2), 1, dtype=torch.uint8)
        state = _state(linear.weight, plan)
        layer.weight = Params4bit(
            packed, False, state, compress_statistics=double, quant_type="nf4", module=layer, bnb_quantized=True
        )
    else:
        weight = Params4bit(
            linear.weight.data, requires_grad=False, compress_statistics=double, quant_type="nf4", module=layer
        )
        layer.weight = weight.to(linear.weight.device)  # type: ignore[misc]  # bitsandbytes types self as any T
    return layer


def _state(weight: torch.Tensor, plan: TrainingPlan):
    """bitsandbytes' record of how to read a 4-bit weight."""
    from bitsandbytes.functional import QuantState

    blocks = -(-weight.numel() // BLOCK)
    state = dict(shape=weight.shape, code=_empty(16), blocksize=BLOCK, quant_type="nf4", dtype=weight.dtype)
    if not plan.double_quantization:
        return QuantState(absmax=_empty(blocks), **state)
    second = QuantState(absmax=_empty(-(-blocks // BLOCK2)), code=_empty(256), blocksize=BLOCK2, dtype=torch.float32)
    return QuantState(absmax=_empty(blocks, dtype=torch.uint8), offset=_empty(), state2=second, **state)


def _eight_bit(linear: nn.Linear, plan: TrainingPlan) -> nn.Module:
    from bitsandbytes.nn import Int8Params, Linear8bitLt

    layer = Linear8bitLt(
        linear.in_features, linear.out_features, linear.bias is not None, has_fp16_weights=False, threshold=OUTLIERS,
        device="meta",
    )  # fmt: skip
    layer.bias = linear.bias
    if linear.weight.is_meta:
        codes = _empty(*linear.weight.shape, dtype=torch.int8)
        layer.weight = Int8Params(codes, False, CB=codes, SCB=_empty(linear.out_features))
    else:
        weight = Int8Params(linear.weight.data, requires_grad=False, has_fp16_weights=False)
        layer.weight = weight.to(linear.weight.device)  # type: ignore[misc]  # as above
    return layer


def _empty(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def scales(module: nn.Module) -> list[torch.Tensor]:
    """What bitsandbytes keeps beside a layer's weight, in records of its own: scales, and tables to read codes with."""
    bitsandbytes = sys.modules.get("bitsandbytes")
    if bitsandbytes is None:  # then no layer is its
        return []
    found = [getattr(holder, "quant_state", None) for holder in (module, *module.parameters(recurse=False))]
    states = [state for state in found if isinstance(state, bitsandbytes.functional.QuantState)]
    states += [state.state2 for state in states if state.nested]
    named = [getattr(state, name, None) for state in states for name in ("absmax", "code", "offset")]
    if isinstance(module, bitsandbytes.nn.Linear8bitLt):
        named += [getattr(holder, "SCB", None) for holder in (module.weight, module.state)]
    return [tensor for tensor in named if isinstance(tensor, torch.Tensor)]
