"""NF4: four bits a weight, with a codebook made for normally distributed weights.

    absmax_b = max |w| over block b of 64 weights                               float32, one a block
    q        = the index of the value of NF4_CODE nearest to w * (1 / absmax_b)    4 bits a weight
    w'       = NF4_CODE[q] * absmax_b                                           float32, then the wanted dtype

NF4_CODE has 16 values, quantiles of the normal distribution divided by the largest, so that each code is used about
equally often; zero is one of them. Double quantization stores the absmax values in 8 bits: ``minigpt.scales``.

Bytes a weight: 1/2 + 4/64 = 0.5625; with double quantization 1/2 + 1/64 + 4/(64 * 256) = 0.515869, plus the offset.
That saves 0.373 *bits* a weight. The two tables are constants, made where they are used (2 KiB and 1 KiB, for a
moment); bitsandbytes keeps 64 and 1,024 bytes of them with every tensor.

Source: QLoRA, Dettmers et al. 2023. The bytes are those of bitsandbytes 0.50: weights in row-major order, the even one
of a pair in the high nibble, a tie to the lower code. NaN and infinity are refused; bitsandbytes stores them.

Left out: FP4, a fused dequantize-and-multiply kernel, learned biases, convolutions, embeddings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

from minigpt.scales import TINY, Statistics, dequantize_statistics, quantize_statistics, table
from minigpt.values import check_flags

NF4_CODE = (  # the published values; all are float32 numbers
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453,
    -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0,
    0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
THRESHOLDS = tuple((a + b) / 2 for a, b in zip(NF4_CODE, NF4_CODE[1:]))  # between neighbouring codes
# Weights worked on at a time. On a CPU enough that its threads share the work, and few enough for its cache.
# A GPU wants large kernels.
CPU_CHUNK, GPU_CHUNK = 2**17, 2**24


def derive_code(offset: float = 0.9677083) -> list[float]:
    """The 16 NF4 values from normal quantiles; within 1e-6 of ``NF4_CODE``.

    Eight positive values, seven negative ones and zero: equally spaced probabilities between 1/2 and ``offset``, a
    number under 1 because the quantile of 1 is infinite. The default is 1 - (1/30 + 1/32) / 2: half a code's share
    of the probability, averaged over a table of 15 codes and one of 16.
    """
    quantile = NormalDist().inv_cdf
    positive = [quantile(offset + (0.5 - offset) * k / 8) for k in range(8)]  # from the largest down
    negative = [-quantile(offset + (0.5 - offset) * k / 7) for k in range(7)]
    return [value / positive[0] for value in sorted([*negative, 0.0, *positive])]


# ---------------------------------------------------------------- pure functions


class QuantizedWeight(NamedTuple):
    """A tensor of n weights in NF4."""

    packed: Tensor  # (ceil(n / 2),) uint8: weight 2i in the high nibble of byte i, weight 2i + 1 in the low one
    absmax: Tensor | Statistics  # (ceil(n / block),) float32, or those in 8 bits
    shape: torch.Size  # of the weight
    dtype: torch.dtype  # of the weight
    block: int  # weights that share one absmax


def quantize(weight: Tensor, block: int = 64, double_quantization=False, name: str = "weight") -> QuantizedWeight:
    """``weight``, of any shape, float32, bfloat16 or float16, in NF4. A last block may be short.

    An absmax is float32 whatever the dtype. A block of zeros decodes to zeros. An odd weight leaves the last low
    nibble at the code of zero. Raises ValueError, with ``name``, for a weight that is empty, of another dtype or not
    finite, and for a ``block`` that is not an even number of at least 2.
    """
    if weight.dtype not in DTYPES:
        raise ValueError(f"{name} is {weight.dtype}; allowed: {', '.join(map(str, DTYPES))}")
    if weight.numel() == 0:
        raise ValueError(f"{name} has shape {tuple(weight.shape)}; it must have at least one element")
    check_flags(double_quantization=double_quantization)
    if isinstance(block, bool) or not isinstance(block, int) or block < 2 or block % 2:
        raise ValueError(f"block is {block!r}; it must be an even number of at least 2")
    flat, n, size = weight.detach().reshape(-1), weight.numel(), _chunk(block, weight.device)
    packed = torch.empty((n + 1) // 2, dtype=torch.uint8, device=flat.device)
    absmax = torch.empty(-(-n // block), dtype=torch.float32, device=flat.device)
    for chunk, largest, part in zip(flat.split(size), absmax.split(size // block), packed.split(size // 2)):
        x = F.pad(chunk.float(), (0, -len(chunk) % block)).view(-1, block)
        torch.amax(x.abs(), dim=1, out=largest)  # into absmax
        x = x * (1 / largest.clamp(min=TINY))[:, None]  # as bitsandbytes: not x / largest, which rounds otherwise
        codes = torch.zeros(x.shape, dtype=torch.uint8, device=x.device)
        for threshold in THRESHOLDS:  # the code is the number of thresholds below x; faster than torch.bucketize
            codes += x > threshold
        high, low = codes.view(-1, 2).unbind(1)
        part.copy_((high << 4 | low)[: len(part)])
    # A block's NaN or infinity is its absmax. Fake and meta tensors have no values to look at.
    if type(absmax) is Tensor and not absmax.is_meta and not absmax.isfinite().all():
        raise ValueError(f"{name} holds NaN or infinity; every weight must be finite")
    statistics = quantize_statistics(absmax) if double_quantization else absmax
    return QuantizedWeight(packed, statistics, weight.shape, weight.dtype, block)


def dequantize(weight: QuantizedWeight, dtype: torch.dtype | None = None) -> Tensor:
    """The weight back, in ``weight.shape``; multiplied in float32, then rounded to ``dtype`` (the weight's own).

    Beside its result it needs 6 bytes a weight of one chunk (786 kB on a CPU), and absmax in float32 if it was nested.
    """
    absmax, block, n = weight.absmax, weight.block, weight.shape.numel()
    if isinstance(absmax, Statistics):
        absmax = dequantize_statistics(absmax)
    packed, code = weight.packed, table(NF4_CODE, weight.packed.device)
    # One look-up gives two weights: 256 pairs of float32, each pair read as one 8-byte number.
    pairs = torch.stack([code.repeat_interleave(16), code.repeat(16)], dim=1).view(torch.int64)[:, 0]  # (256,)
    out = torch.empty(n, dtype=dtype or weight.dtype, device=packed.device)
    whole, size = n // block * block, _chunk(block, packed.device)
    parts = packed[: whole // 2].split(size // 2), absmax[: whole // block, None].split(size // block)
    for two, scale, part in zip(*parts, out[:whole].view(-1, block).split(size // block)):
        part.copy_(pairs.index_select(0, two.int()).view(torch.float32).view(-1, block).mul_(scale))
    if whole < n:  # a short last block
        x = pairs.index_select(0, packed[whole // 2 :].int()).view(torch.float32)[: n - whole]
        out[whole:].copy_(x.mul_(absmax[-1]))
    return out.view(weight.shape)


def storage_bytes(holder: QuantizedWeight | nn.Module) -> int:
    """Bytes of the storages of a quantized weight, or of a module's parameters and buffers; each storage once."""
    tensors = _tensors(holder) if isinstance(holder, tuple) else [*holder.parameters(), *holder.buffers()]
    return sum({t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors}.values())


def _tensors(weight: QuantizedWeight) -> list[Tensor]:
    return [weight.packed, *(weight.absmax if isinstance(weight.absmax, Statistics) else [weight.absmax])]


def _chunk(block: int, device: torch.device) -> int:
    """Weights worked on at a time: whole blocks."""
    return max(block, (CPU_CHUNK if device.type == "cpu" else GPU_CHUNK) // block * block)


# ---------------------------------------------------------------- modules


class FrozenLinear(torch.autograd.Function):
    """y = x W^T + bias with W in NF4. Saves no activation and no W: backward dequantizes W a second time."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: QuantizedWeight, bias: Tensor | None) -> Tensor:
        ctx.weight = weight  # the packed bytes, which the module holds anyway
        return F.linear(x, dequantize(weight, x.dtype), bias)  # (..., out)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None, None]:
        return grad @ dequantize(ctx.weight, grad.dtype), None, None  # (..., in)


class NF4Linear(nn.Module):
    """A frozen linear layer with its weight in NF4. In: (..., in_features); out: (..., out_features), in x's dtype.

    Computes in ``compute_dtype``, or in x's dtype if that is None. The gradient goes to x; the layer has none.
    Its buffers stay as they are under ``.to(dtype)``: only devices change.
    """

    packed: Tensor
    absmax: Tensor  # as in QuantizedWeight, or in Statistics, which has the other two as well
    codes: Tensor | None
    offset: Tensor | None

    def __init__(
        self, linear: nn.Linear, *, block: int = 64, double_quantization: bool = True,
        compute_dtype: torch.dtype | None = None, name: str = "weight",
    ) -> None:  # fmt: skip
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.compute_dtype, self.block, self.dtype = compute_dtype, block, linear.weight.dtype
        weight = quantize(linear.weight, block, double_quantization, name)
        self.register_buffer("packed", weight.packed)
        parts = weight.absmax if double_quantization else (None, weight.absmax, None)
        for part, tensor in zip(Statistics._fields, parts):  # codes, absmax, offset, or absmax alone
            self.register_buffer(part, tensor)
        self.bias = None if linear.bias is None else nn.Parameter(linear.bias.detach().clone(), requires_grad=False)
        self.train(linear.training)

    @property
    def quantized(self) -> QuantizedWeight:
        absmax: Tensor | Statistics = self.absmax
        if self.codes is not None and self.offset is not None:
            absmax = Statistics(self.codes, self.absmax, self.offset)
        shape = torch.Size([self.out_features, self.in_features])
        return QuantizedWeight(self.packed, absmax, shape, self.dtype, self.block)

    def dequantize(self, dtype: torch.dtype | None = None) -> Tensor:
        """The weight, (out_features, in_features), as a new tensor of ``dtype`` (that of the original weight)."""
        return dequantize(self.quantized, dtype)

    def requantize(self, weight: Tensor) -> None:
        """Hold another weight, (out_features, in_features), instead; merging an adapter does. Rounds to 4 bits."""
        new = quantize(weight, self.block, self.codes is not None)
        for old, tensor in zip(_tensors(self.quantized), _tensors(new)):
            old.copy_(tensor)

    def forward(self, x: Tensor) -> Tensor:
        dtype = self.compute_dtype or x.dtype
        bias = None if self.bias is None else self.bias.to(dtype)
        return FrozenLinear.apply(x.to(dtype), self.quantized, bias).to(x.dtype)

    def _apply(self, fn, recurse: bool = True):
        before = dict(self.named_buffers())
        super()._apply(fn, recurse)
        for name, buffer in before.items():
            moved = getattr(self, name)
            if moved.dtype != buffer.dtype:  # absmax in 16 bits would be another weight
                setattr(self, name, buffer.to(moved.device))
        return self


def quantize_model(model: nn.Module, targets="all-linear", *, skip=("lm_head",), **options) -> list[str]:
    """Replace linear layers of ``model`` by NF4Linear, in place, and return their names; ``options`` are NF4Linear's.

    "all-linear" is every ``nn.Linear`` except those named in ``skip`` and those whose weight is another module's too
    (a head tied to the embedding). Otherwise ``targets`` is a list of names, in full or the end of it ("q_proj").
    Embeddings, norms and what is not a target stay as they are, in their dtype, and may still require gradients.
    Raises ValueError, and changes nothing, for a target that no linear layer has, a tied one, or a bad weight.
    """
    linears = {name: module for name, module in model.named_modules() if type(module) is nn.Linear}
    owners = Counter(id(p) for module in model.modules() for p in module.parameters(recurse=False))
    tied = [name for name, module in linears.items() if owners[id(module.weight)] > 1]
    allowed = f"allowed: 'all-linear', or a list of {', '.join(dict.fromkeys(n.split('.')[-1] for n in linears))}"
    if targets == "all-linear":
        chosen = [name for name in linears if name not in tied and not _ends(name, skip)]
    elif not targets or isinstance(targets, str):
        raise ValueError(f"targets is {targets!r}; {allowed}")
    else:
        chosen = [name for name in linears if _ends(name, targets)]
        if unknown := [target for target in targets if not any(_ends(name, [target]) for name in chosen)]:
            raise ValueError(f"targets has {unknown[0]!r}, but no linear layer has that name; {allowed}")
        if both := [name for name in chosen if name in tied]:
            raise ValueError(f"targets has {both[0]!r}, whose weight is another module's too; it must stay as it is")
    layers = {name: NF4Linear(linears[name], name=f"{name}.weight", **options) for name in chosen}
    for name, layer in layers.items():
        model.set_submodule(name, layer)
    return chosen


def _ends(name: str, targets: Sequence[str]) -> bool:
    return f".{name}".endswith(tuple(f".{target}" for target in targets))
