"""Cross-entropy without the logits: a few tokens at a time, with the gradients made on the way.

The loss of N tokens with hidden states h (N, C), a head W (V, C) and targets y (N,), of which n are counted:

    z = h W^T,   loss = sum(logsumexp(z) - z[y]) / n,   dz = (softmax(z) - onehot(y)) / n,   dh = dz W,   dW = dz^T h

Each row of z is needed for its own row of dz and for nothing else. So forward takes ``chunk`` tokens, makes their z,
adds their share to the loss, dh and dW, and drops z. What waits for backward is dh and dW, and no logit:

    plain     saves 4NV bytes of log-probabilities, and backward makes 8NV more
    chunked   saves dh and dW, and needs 8 * chunk * V bytes for a moment

The idea is Liger's (Hsu et al. 2024, arXiv 2410.10989), whose kernel also writes dz over z. Left out: label smoothing,
class weights, gradients of gradients.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from minigpt.values import check_counts

CHUNK = 1024  # tokens


def chunked_cross_entropy(
    hidden: Tensor, weight: Tensor, targets: Tensor, *, chunk: int = CHUNK, ignore_index: int = -100
) -> Tensor:
    """Mean loss in nats, a float32 scalar, as ``F.cross_entropy((hidden @ weight.T).float(), targets)`` has it.

    ``hidden`` (..., C) and ``weight`` (V, C) are floating; gradients come back in their dtypes. ``targets`` (...) is
    int64; those of ``ignore_index`` add nothing. Under autocast products run in its dtype; in float64 all is float64.
    Raises ValueError for shapes that do not belong together and for a ``chunk`` below 1.
    """
    check_counts(chunk=chunk)
    if weight.ndim != 2 or hidden.shape[-1:] != weight.shape[1:]:
        shapes = f"{tuple(weight.shape)}; with hidden {tuple(hidden.shape)}"
        raise ValueError(f"weight has shape {shapes} it must be (words, {hidden.shape[-1] if hidden.ndim else 'C'})")
    if targets.shape != hidden.shape[:-1]:
        raise ValueError(f"targets has shape {tuple(targets.shape)}; it must be {tuple(hidden.shape[:-1])}, as hidden")
    device = hidden.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
    wanted = [torch.is_grad_enabled() and x.requires_grad for x in (hidden, weight)]
    with torch.autocast(device, enabled=False):
        return _Chunked.apply(hidden.flatten(0, -2), weight, targets.flatten(), chunk, ignore_index, dtype, wanted)


class _Chunked(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, weight, targets, chunk, ignore_index, dtype, wanted):
        wide = torch.promote_types(dtype, torch.float32)  # of logits and of sums
        head = weight.to(dtype)  # (V, C)
        counted = (targets != ignore_index).to(wide)  # (N,), ones and zeros
        n = counted.sum()
        loss = hidden.new_zeros((), dtype=wide)
        d_hidden = torch.empty_like(hidden) if wanted[0] else None  # (N, C)
        d_weight = torch.zeros_like(weight, dtype=wide) if wanted[1] else None  # (V, C)
        for start in range(0, len(targets), chunk):
            rows = slice(start, start + chunk)
            h = hidden[rows].to(dtype)  # (chunk, C)
            y = targets[rows].masked_fill(counted[rows] == 0, 0)[:, None]  # (chunk, 1)
            log_p = (h @ head.T).to(wide).log_softmax(-1)  # (chunk, V)
            loss -= (log_p.gather(1, y)[:, 0] * counted[rows]).sum()
            if any(wanted):
                dz = log_p.exp_()  # in place: softmax(z)
                dz.scatter_add_(1, y, dz.new_full(y.shape, -1))
                dz *= (counted[rows] / n.clamp(min=1))[:, None]
                dz = dz.to(dtype)
                if d_hidden is not None:
                    d_hidden[rows] = dz @ head
                if d_weight is not None:
                    d_weight += dz.T @ h
                del dz
            del log_p  # or it would still be there when the next one is made
        ctx.save_for_backward(d_hidden, None if d_weight is None else d_weight.to(weight.dtype))
        return loss / n

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        return *(None if saved is None else saved * gradient.to(saved.dtype) for saved in ctx.saved_tensors), *[
            None
        ] * 5
