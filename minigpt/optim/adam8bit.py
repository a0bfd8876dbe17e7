"""AdamW with m and v in 8 bits: 2.03 bytes per parameter where float32 takes 8.

    m, v   = dequantize(codes, absmax)                        float32, for one tensor and for a moment
    w, m, v = adam_step(w, g, m, v, t)                        float32
    codes, absmax = quantize(m), quantize(v)                  the signed map for m, the other for v

The weight moves by the *new* m and v, before they are rounded. That matters: v of an element far under its block's
largest rounds to zero, and m / (sqrt(0) + eps) would throw the weight away. Rounded first, it is only forgotten: the
next v is (1 - b2) g^2.

Bytes of state per parameter: 2 * (1 + 4/256) = 2.03125, and two maps of 1 KiB for each optimizer. A tensor of fewer
than 4,096 elements keeps float32: norms and biases are few, and matter much. With LoRA there is little to save: m and v
exist for trained parameters only.

Source: Dettmers et al. 2021, arXiv 2110.02861; bytes and rules are those of bitsandbytes 0.50 (``optim.AdamW8bit``).
NaN and infinity in a gradient are refused, while bitsandbytes skips the element on CUDA and spoils its block on a CPU.

Left out: paging, percentile clipping, other optimizers in 8 bits, state in 32 bits for embeddings.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from minigpt.optim.adam import adam_step
from minigpt.optim.blockwise import BLOCK, dequantize, dynamic_map, linear_map, quantize
from minigpt.optim.one_by_one import OneByOne
from minigpt.values import check_choice

SMALLEST = 4096  # elements: a smaller tensor keeps float32
MAPS = {"dynamic": dynamic_map, "linear": linear_map}


class AdamW8bit(OneByOne):
    """AdamW with block-wise 8-bit state, for weights of any floating dtype; the update is made in float32.

    ``state[p]`` holds "step", and of m and v "m" and "v" (uint8 codes of p's shape) with "m_absmax" and "v_absmax"
    (float32, one per 256); under 4,096 elements "m" and "v" are float32, without scales. ``kind`` "linear" has equally
    spaced values instead of the dynamic map, to see what that does. Raises ValueError for another ``kind``, for
    hyperparameters out of range, and for a gradient with NaN or infinity: then this parameter and its state are as
    they were, while those before it have been updated.
    """

    def __init__(
        self, params: Iterable, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
        weight_decay: float = 1e-2, *, kind: str = "dynamic",
    ) -> None:  # fmt: skip
        check_choice(MAPS, kind=kind)
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)
        self.kind = kind
        self._maps: dict[torch.device, tuple[Tensor, Tensor]] = {}  # of m and of v, on each device

    def maps(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """The maps of m and of v, (256,) float32 each, shared by all tensors on the device."""
        if device not in self._maps:
            make = MAPS[self.kind]
            self._maps[device] = make(True, device), make(False, device)
        return self._maps[device]

    def _update(self, p: Tensor, grad: Tensor, state: dict, group: dict) -> None:
        small = p.numel() < SMALLEST
        options = {name: group[name] for name in ("lr", "betas", "eps", "weight_decay")}
        kept = state or self._start(p, small)
        m, v, t = kept["m"], kept["v"], kept["step"] + 1
        if small:
            weight, m, v = adam_step(p.float(), grad.float(), m, v, t, **options)
            state.update(m=m, v=v, step=t)
        else:
            m_map, v_map = self.maps(p.device)
            m, v = dequantize(m, kept["m_absmax"], m_map), dequantize(v, kept["v_absmax"], v_map)
            weight, m, v = adam_step(p.float(), grad.float(), m, v, t, **options)
            name = f"the gradient of a parameter of shape {tuple(p.shape)}"
            m_codes, m_absmax = quantize(m, m_map, name=name)
            v_codes, v_absmax = quantize(v, v_map, name=name)
            state.update(m=m_codes, m_absmax=m_absmax, v=v_codes, v_absmax=v_absmax, step=t)
        p.copy_(weight)

    def _start(self, p: Tensor, small: bool) -> dict:
        """m and v of zero. A code of 0 is no zero, but its block's absmax is."""
        dtype = torch.float32 if small else torch.uint8
        kept: dict = {"step": 0, "m": torch.zeros_like(p, dtype=dtype), "v": torch.zeros_like(p, dtype=dtype)}
        if not small:
            blocks = -(-p.numel() // BLOCK)
            kept |= {f"{name}_absmax": torch.zeros(blocks, device=p.device) for name in ("m", "v")}
        return kept
