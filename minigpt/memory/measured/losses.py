"""Losses that take the output head apart, so that the logits of a batch are never there at once.

Each makes the tensors that its library makes, operation by operation, on a GPU: a kernel of Triton works in place and
allocates nothing, so its place is empty here, and the values of "fused" and "trl" mean nothing.

    chunked   torchtune's LinearCrossEntropyLoss: CHUNKS pieces of the sequence, each with float32 logits; autograd
              keeps what each piece saves (torchtune/modules/loss/cross_entropy_loss.py, 0.6)
    fused     Liger's fused linear cross-entropy: gradients are made in forward, piece by piece, and kept instead of
              logits (liger_kernel/ops/fused_linear_cross_entropy.py, 0.8, compute capability 8 or more)
    trl       trl's fused head, which SFTTrainer always uses: one tile of logits, made again in backward
              (trl/kernels/chunked_logprob.py and trainer/utils.py, add_fused_lm_head, 1.15)
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minigpt.memory.measured.fakes import AllTrue

CHUNKS = 8  # torchtune's num_output_chunks
TILE_TOKENS, TILE_WORDS = 4096, 32768  # trl's TOKEN_CHUNK_SIZE and _CHUNKED_LOGPROB_CHUNK_SIZE


def chunked(hidden: Tensor, head: nn.Module, targets: Tensor) -> Tensor:
    """``hidden`` (B, T, C), ``targets`` (B, T), shifted already, as torchtune's recipes do it beforehand."""
    total: Tensor | float = 0.0
    for piece, labels in zip(hidden.tensor_split(CHUNKS, dim=1), targets.tensor_split(CHUNKS, dim=1), strict=True):
        logits = head(piece)
        total = total + F.cross_entropy(logits.float().flatten(0, 1), labels.flatten(), reduction="sum")
        del logits
    assert isinstance(total, Tensor)  # there are CHUNKS pieces
    return total / targets.numel()


def fused(hidden: Tensor, head: nn.Module, targets: Tensor) -> Tensor:
    return _Liger.apply(hidden.flatten(0, 1), head.weight, targets.flatten())


class _Liger(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu")
    def forward(ctx, hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        (tokens, C), V = hidden.shape, weight.shape[0]
        size = -(-tokens // -(-V // C))
        size = min(1 << (size - 1).bit_length(), tokens)  # the next power of two: pieces of logits as large as hidden
        grad_hidden = torch.zeros_like(hidden)
        grad_weight = torch.zeros_like(weight) if weight.requires_grad else None
        losses = torch.zeros(tokens, dtype=torch.float32, device=hidden.device)
        (targets != -100).sum()
        mixed = torch.is_autocast_enabled(hidden.device.type) and hidden.dtype != _compute_dtype(hidden)
        storage = None if mixed or weight.dtype != hidden.dtype else hidden.new_empty(size, V)
        for start in range(0, tokens, size):
            piece = hidden[start : start + size]
            if storage is None:
                logits = piece @ weight.t()
            else:
                logits = storage[: piece.shape[0]]
                torch.mm(piece, weight.t(), out=logits)
            # Here a kernel writes the loss into `losses` and the gradient over the logits.
            if storage is None:
                grad_hidden[start : start + size] = logits @ weight
            else:
                torch.mm(logits, weight, out=grad_hidden[start : start + size])
            if grad_weight is not None:
                _add_product(grad_weight, logits.t(), piece)
            del logits, piece
        del storage
        ctx.save_for_backward(grad_hidden, grad_weight)
        return losses.sum()

    @staticmethod
    def backward(ctx, gradient: Tensor):
        grad_hidden, grad_weight = ctx.saved_tensors
        return grad_hidden, grad_weight, None


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total += a @ b as Liger does it: in place for 16-bit factors, else with a product of its own."""
    if a.dtype in (torch.float16, torch.bfloat16):
        if b.dtype != a.dtype:
            b = b.to(a.dtype)
        total.mul_(1.0)  # in the place of an addmm that a CPU has not: 16 bits into float32
    else:
        total += torch.mm(a, b).float()


def trl(hidden: Tensor, head: nn.Module, targets: Tensor) -> Tensor:
    """trl's SFTTrainer: ``hidden`` (B, T, C) and ``targets`` (B, T) as the batch has them; shifted here."""
    hidden, targets = hidden[:, :-1], targets[:, 1:]
    mask = targets != -100
    with AllTrue():
        hidden, targets = hidden[mask], targets[mask]
    per_token = _Trl.apply(hidden, head.weight, targets)
    del hidden, targets
    log_probs, entropy, is_top1 = (x.new_zeros(mask.shape).masked_scatter(mask, x) for x in per_token)
    loss = -log_probs.sum() / mask.sum().clamp(min=1)
    del loss  # add_fused_lm_head computes it, and SFTTrainer.compute_loss its own
    per_token_loss = -log_probs
    return per_token_loss.sum() / mask.sum().clamp(min=1)


class _Trl(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden: Tensor, weight: Tensor, targets: Tensor):
        ctx.set_materialize_grads(False)
        count, V, dtype = hidden.shape[0], weight.shape[0], _compute_dtype(hidden)
        statistics = [torch.zeros(count, dtype=torch.float32, device=hidden.device) for _ in range(7)]
        buffer = torch.empty((min(count, TILE_TOKENS), TILE_WORDS), dtype=dtype, device=hidden.device)
        for start in range(0, count, TILE_TOKENS):
            piece = hidden[start : start + TILE_TOKENS].to(dtype)
            for word in range(0, V, TILE_WORDS):
                part = weight[word : word + TILE_WORDS]
                torch.mm(piece, part.to(dtype).t(), out=buffer[: piece.shape[0], : part.shape[0]])
        running_max, sum_exp, x_sum_exp, _, _, max_before, target_logit = statistics
        log_z = running_max + torch.log(sum_exp)
        log_probs = target_logit - log_z
        entropy = log_z - x_sum_exp / sum_exp
        is_top1 = (target_logit >= running_max) & (target_logit > max_before)
        ctx.save_for_backward(hidden, weight, targets, log_z, entropy)
        ctx.dtype = dtype
        ctx.mark_non_differentiable(is_top1)
        return log_probs, entropy, is_top1

    @staticmethod
    def backward(ctx, gradient: Tensor, *_):
        hidden, weight, _, _, _ = ctx.saved_tensors
        count, V, dtype = hidden.shape[0], weight.shape[0], ctx.dtype
        needs_hidden, needs_weight = ctx.needs_input_grad[:2]
        grads = [torch.zeros(x.shape, dtype=torch.float32, device=x.device) if needed else None
                 for x, needed in ((hidden, needs_hidden), (weight, needs_weight))]  # fmt: skip
        buffer = torch.empty((min(count, TILE_TOKENS), TILE_WORDS), dtype=dtype, device=hidden.device)
        gradient = gradient.float().contiguous()
        for start in range(0, count, TILE_TOKENS):
            piece = hidden[start : start + TILE_TOKENS].to(dtype)
            for word in range(0, V, TILE_WORDS):
                part = weight[word : word + TILE_WORDS].to(dtype)
                tile = buffer[: piece.shape[0], : part.shape[0]]
                torch.mm(piece, part.t(), out=tile)
                # Here a kernel turns the tile into its gradient, and its products are added to the float32 totals in
                # place: 16-bit ones by addmm into float32, float32 ones by addmm_.
                del part, tile
        return (*(g.to(x.dtype) if g is not None else None for g, x in zip(grads, (hidden, weight), strict=True)), None)


def _compute_dtype(x: Tensor) -> torch.dtype:
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
