"""DoRA: the low-rank change turns the rows of W, and the length of each row is learned apart.

    V = W + s B A                 (out, in)
    W' = (m / ||V||) V            ||V|| (out,): the length of each row;  m (out,) starts at ||W||, so W' starts at W

Source: Liu et al. 2024, arXiv 2402.09353; its section 4.3 makes ||V|| a constant in backward. The operations are those
of peft 0.21's ``DoraLinearLayer``. The functions here are what ``LoRALinear`` does otherwise with ``kind="dora"``.

A row of zeros in W has no direction, and DoRA makes NaN of it, as in peft.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

if TYPE_CHECKING:
    from minigpt.lora.layer import LoRALinear


def lengths(weight: Tensor) -> Tensor:
    """||V||, the length of each row: (out, in) to (out,)."""
    return torch.linalg.norm(weight, dim=1)


def forward(layer: LoRALinear, y: Tensor, h: Tensor, dropped: bool) -> Tensor:
    """W' h + b, (..., out), in y's dtype.

    ``y`` is W x + b, the base's own output, and ``h`` (..., in) the input in the adapter's dtype. So W h is y less the
    bias, as in peft, unless ``dropped``: then dropout made h another input than x.
    """
    W = layer.base_weight().to(h.dtype)  # (out, in); a copy where the base is 16-bit
    norms = lengths(W + layer.scaling * layer.product().to(h.dtype))  # (out,)
    update = layer.update(h)  # (..., out)
    t = layer.lora_magnitude_vector / norms  # (out,)
    bias = getattr(layer.base, "bias", None)
    Wh = F.linear(h, W) if dropped else y if bias is None else y - bias  # (..., out)
    return (y + ((t - 1) * Wh + t * update * layer.scaling)).to(y.dtype)


def merged(layer: LoRALinear, V: Tensor) -> Tensor:
    """W' from V, both (out, in). The layer keeps ||V|| as a buffer, since ``unmerged`` cannot find it again."""
    layer.register_buffer("norms", lengths(V), persistent=False)  # (out,)
    return (layer.lora_magnitude_vector / layer.norms)[:, None] * V


def unmerged(layer: LoRALinear, weight: Tensor) -> Tensor:
    """V from W', to rounding error. The layer lets go of ||V||."""
    V = weight / (layer.lora_magnitude_vector / layer.norms)[:, None]
    del layer.norms
    return V
