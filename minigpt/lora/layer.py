"""One linear layer with an adapter beside it.

    y = W x + b + s B A x         A (r, in), B (out, r);  the bias b is not scaled
    W' = W + s B A                after merging

    lora     s = alpha / r            Hu et al. 2021, arXiv 2106.09685
    rslora   s = alpha / sqrt(r)      Kalajdzievski 2023, arXiv 2312.03732: a larger r no longer shrinks the update
    dora     s = alpha / r            and the length of each row is learned apart: see ``dora``

A layer trains r (in + out) parameters, with DoRA ``out`` more. Merging keeps no copy of W, which would cost what the
adapter saves, so unmerging brings W back to rounding error only: that of W's own dtype, which on a 4-bit base is large,
since merging and unmerging each requantize.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minigpt.lora import dora
from minigpt.values import check_choice, is_number

KINDS = ("lora", "rslora", "dora")


def shapes(n_in: int, n_out: int, rank: int, kind: str, name: str = "this layer") -> dict[str, tuple[int, ...]]:
    """The shapes of one layer's adapter, by the names of its tensors.

    ``name`` is the layer's, for the error. Raises ValueError for a kind that is not one of ``KINDS``, and for a rank
    that is not an integer from 1 to the smaller side of the weight.
    """
    check_choice(KINDS, kind=kind)
    if isinstance(rank, bool) or not isinstance(rank, int) or not 1 <= rank <= min(n_in, n_out):
        allowed = f"an integer from 1 to {min(n_in, n_out)}"
        raise ValueError(f"rank is {rank!r}; it must be {allowed} for {name}, which is {n_out} x {n_in}")
    magnitude = {"lora_magnitude_vector": (n_out,)} if kind == "dora" else {}
    return {"lora_A": (rank, n_in), "lora_B": (n_out, rank), **magnitude}


def check_options(alpha, dropout, adapter_dtype, generator) -> None:
    """Raise ValueError, with the name, for what no adapter can have, whatever its layer."""
    if not is_number(alpha) or not 0 < alpha < math.inf:
        raise ValueError(f"alpha is {alpha!r}; it must be a number above 0")
    if not is_number(dropout) or not 0 <= dropout < 1:
        raise ValueError(f"dropout is {dropout!r}; it must be a number of at least 0 and below 1")
    if adapter_dtype is not None and not getattr(adapter_dtype, "is_floating_point", False):
        raise ValueError(f"adapter_dtype is {adapter_dtype!r}; it must be a floating-point torch.dtype, or None")
    if generator is not None and not isinstance(generator, torch.Generator):
        raise ValueError(f"generator is {generator!r}; it must be a torch.Generator, or None")


class LoRALinear(nn.Module):
    """A frozen linear layer with an adapter beside it: (..., in_features) -> (..., out_features).

    ``base`` is an ``nn.Linear``, or anything with in_features, out_features and a forward. Merging and DoRA read its
    weight, from ``base.dequantize()`` (out, in) where there is one, and merging writes it, with
    ``base.requantize(weight)`` where there is one. It is frozen here. ``rank`` is r, and s comes from ``alpha`` and
    ``kind``, one of ``KINDS``. ``dropout`` is the share of the adapter's input that is zeroed in training; the base
    sees all of it. ``adapter_dtype`` is the dtype of A, B and m; None takes that of the base's weight. ``generator``
    draws A, and torch's own if it is None. Raises ValueError for a value that is not allowed.
    """

    lora_magnitude_vector: nn.Parameter  # of DoRA
    norms: Tensor  # of DoRA, while merged

    def __init__(
        self, base: nn.Linear, rank: int = 8, alpha: float = 16, kind: str = "lora", *, dropout: float = 0.0,
        adapter_dtype: torch.dtype | None = torch.float32, generator: torch.Generator | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        check_options(alpha, dropout, adapter_dtype, generator)
        sizes = shapes(base.in_features, base.out_features, rank, kind)
        self.in_features, self.out_features = base.in_features, base.out_features
        self.rank, self.alpha, self.kind, self.dropout = rank, alpha, kind, dropout
        self.scaling = alpha / math.sqrt(rank) if kind == "rslora" else alpha / rank
        self.merged = self.idle = False
        self.base = base.requires_grad_(False)
        W = self.base_weight()
        like: dict[str, Any] = dict(device=W.device, dtype=adapter_dtype or W.dtype)
        A = torch.empty(sizes["lora_A"])
        nn.init.kaiming_uniform_(A, a=math.sqrt(5), generator=generator)  # uniform in +-1/sqrt(in)
        self.lora_A = nn.Parameter(A.to(**like))  # (r, in)
        self.lora_B = nn.Parameter(torch.zeros(sizes["lora_B"], **like))  # (out, r)
        if kind == "dora":
            self.lora_magnitude_vector = nn.Parameter(dora.lengths(W).to(**like))  # (out,)

    def adapter_tensors(self) -> dict[str, nn.Parameter]:
        """The adapter's own parameters, by name: what is trained, and what a file holds. The base's are not there."""
        return dict(self.named_parameters(recurse=False))

    # ------------------------------------------------------------ forward

    def forward(self, x: Tensor) -> Tensor:
        """(..., in_features) in any floating dtype, to (..., out_features) in the dtype that the base gives."""
        y = self.base(x)  # (..., out)
        if self.merged or self.idle:
            return y
        h = x.to(self.lora_A.dtype)  # (..., in); a copy where the base is 16-bit, and backward keeps it
        if dropped := self.training and self.dropout > 0:
            h = F.dropout(h, self.dropout)
        if self.kind == "dora":
            return dora.forward(self, y, h, dropped)
        dtype = y.dtype  # y is replaced, not kept beside the sum: that is one output less at the peak
        y = y + self.update(h) * self.scaling  # (..., out)
        return y.to(dtype)

    def update(self, h: Tensor) -> Tensor:
        """B A h, not yet scaled: (..., in) to (..., out)."""
        return F.linear(F.linear(h, self.lora_A), self.lora_B)

    @torch.no_grad()
    def product(self) -> Tensor:
        """B A, (out, in), a constant to autograd.

        peft sends an identity matrix (in, in) through A and B instead: the same numbers, more temporary bytes.
        """
        return self.lora_B @ self.lora_A

    @torch.no_grad()
    def base_weight(self) -> Tensor:
        """The base's weight W, (out, in), dequantized if need be."""
        dequantize = getattr(self.base, "dequantize", None)
        return dequantize() if dequantize else self.base.weight

    # ------------------------------------------------------------ merging

    @torch.no_grad()
    def merge(self) -> None:
        """Write W' into the base, in place. Until ``unmerge`` the adapter is idle and takes no gradient.

        Raises ValueError if it is merged already.
        """
        self.expect(merged=False)
        weight = self.base_weight() + self.product() * self.scaling  # V, (out, in)
        self._set(dora.merged(self, weight) if self.kind == "dora" else weight, merged=True)

    @torch.no_grad()
    def unmerge(self) -> None:
        """Undo ``merge``, to rounding error. Raises ValueError if it is not merged."""
        self.expect(merged=True)
        weight = self.base_weight()  # W', (out, in)
        if self.kind == "dora":
            weight = dora.unmerged(self, weight)
        self._set(weight - self.product() * self.scaling, merged=False)

    def expect(self, merged: bool, name: str = "this layer") -> None:
        """Raise ValueError, with the layer's ``name``, unless the adapter is merged, or not, as ``merged`` says."""
        if self.merged != merged:
            raise ValueError(f"the adapter of {name} is {'merged already' if self.merged else 'not merged'}")

    def _set(self, weight: Tensor, merged: bool) -> None:
        write = getattr(self.base, "requantize", None) or self.base.weight.copy_
        write(weight)
        self.merged = merged
        for parameter in self.adapter_tensors().values():
            parameter.requires_grad_(not merged)
