"""Which number formats a training run computes in, on a device.

    autocast    the weights stay float32; each matrix product casts its inputs for as long as the graph lives
    master      the weights are bfloat16; the optimizer keeps a float32 copy and updates that (``minigpt.optim.master``)

The two ways to use 16 bits cost different bytes: the table is ``minigpt.memory.plan.PRECISIONS``.
"""

from __future__ import annotations

import torch

from minigpt.memory.plan import PRECISIONS
from minigpt.values import check_choice


def check_precision(precision: str) -> None:
    """Raise ValueError unless ``precision`` is one of PRECISIONS."""
    check_choice(PRECISIONS, precision=precision)


def weight_dtype(precision: str) -> torch.dtype:
    """The dtype that trainable weights must have."""
    check_precision(precision)
    return torch.float32 if PRECISIONS[precision].weights == 4 else getattr(torch, PRECISIONS[precision].half)


def autocast(precision: str, device: str | torch.device) -> torch.autocast:
    """The context for a forward pass; it changes nothing for a precision without autocast."""
    check_precision(precision)
    name = PRECISIONS[precision].autocast
    return torch.autocast(torch.device(device).type, getattr(torch, name or "bfloat16"), enabled=name is not None)


def native_bf16(device: str | torch.device) -> bool:
    """Whether the device computes in bfloat16 itself. A T4 only emulates it; a CPU without AMX or AVX-512 BF16 too."""
    if torch.device(device).type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
