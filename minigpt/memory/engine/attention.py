"""Scaled dot-product attention: q (B, H, T, D), k (B, K, T, D) and v (B, K, T, E) to (B, H, T, E).

torch picks the kernel (``Kernels.fused``). It is a fused one, which saves q, k, v, the output and a log-sum-exp, or
``math``: the operations one by one in float32, with every score a real tensor. A mask of bools is made into one of
numbers in every layer, and saved.

Source: aten/src/ATen/native/transformers/attention.cpp and sdp_utils_cpp.cpp of torch 2.13.
"""

from __future__ import annotations

from minigpt.memory.engine import ops, views
from minigpt.memory.engine.fused import Fused
from minigpt.memory.engine.tape import Value


def attention(
    q: Value, k: Value, v: Value, mask: Value | None = None, dropout: float = 0.0, enable_gqa: bool = True
) -> Value:
    """F.scaled_dot_product_attention, causal if there is no ``mask`` (B, 1 or H, T, T); the output lies as q does.

    ``enable_gqa``: fewer key heads are groups; without, there may be one, which is broadcast.
    """
    tape = q.storage.tape
    mask, v, k, q = ops.lowered(mask, v, k, q)
    tape.doing = "attention"
    if mask is not None and mask.dtype == "bool":
        mask = tape.new(mask.shape, q.dtype)
    kernel = tape.kernels.fused(q, k, v, mask is not None, dropout if tape.training else 0.0, enable_gqa)
    if kernel is not None:
        return _by_kernel(kernel, q, k, v, mask)
    tape.refuse_in_place("the mask of attention without a fused kernel")
    autocast, tape.autocast = tape.autocast, None  # which ends at attention's door
    out = _math(q, k, v, mask, dropout, q.shape[1] // k.shape[1] if enable_gqa else 1)
    tape.autocast = autocast
    return out


def _by_kernel(kernel: Fused, q: Value, k: Value, v: Value, mask: Value | None) -> Value:
    """One kernel. Backward makes all three gradients, wanted or not."""
    tape, own = q.storage.tape, v.shape[-1]
    q, k, v = (_padded(x, kernel.align) for x in (q, k, v))
    mask = mask and _padded(mask, kernel.mask_align)
    (B, H, T, D), v_width = q.shape, v.shape[-1]
    out, made = kernel.forward(q, k, v)
    saves = [value.storage for value in (q, k, v, mask) if value is not None] + made
    places = [(value.shape, value.strides, value.dtype) for value in (q, k, v)]
    rows, keys = B * H * T, k.shape[2]

    def backward(g):
        tape.work.gradients(rows, 3 * D + 2 * v_width, keys)  # scores again; of v and scores; of q and k
        return kernel.backward(tape, g, *places)

    result = tape.record("attention", (q, k, v), out, saves, backward)
    tape.multiplied(rows, D + v_width, keys)
    return views.narrow(result, 3, own, alias_whole=False) if v_width != own else result


def _padded(x: Value, align: int) -> Value:
    """x, or a copy whose last dimension is a multiple of ``align``."""
    tape, old = x.storage.tape, x.shape
    if old[-1] % align == 0:
        return x
    shape = (*old[:-1], -(-old[-1] // align) * align)
    return tape.record("pad", (x,), (shape, x.dtype, None), (), lambda g: [tape.new(old, g.dtype)])


def _math(q: Value, k: Value, v: Value, mask: Value | None, dropout: float, times: int) -> Value:
    tape, dtype = q.storage.tape, q.dtype
    T, S = q.shape[2], k.shape[2]
    q_acc, k_acc, v_acc = (ops.cast(x, "float32") for x in (q, k, v))
    scaled = ops.scale(q_acc)
    tape.doing = "attention"
    if mask is None:
        everything = tape.new((T, S), "bool")
        past = tape.new((T, S), "bool")
        del everything
        mask = tape.new(past.shape, "float32")
        del past
    keys, values = (x if times == 1 else _interleaved(x, times) for x in (k_acc, v_acc))
    scores = ops.matmul(scaled, ops.scale(views.transpose(keys, 2, 3)))  # the mask is added in place
    weights = ops.softmax(scores)
    tape.kernels.masked_rows(scores)
    del scores
    weights = ops.dropout(weights, dropout)
    returned = ops.cast(weights, dtype)
    out = ops.cast(ops.matmul(weights, values), dtype)
    del returned
    return out


def _interleaved(x: Value, times: int) -> Value:
    """repeat_interleave of heads: always a copy."""
    B, K, T, D = x.shape
    seen = views.expand(views.unsqueeze(x, 2), B, K, times, T, D)
    return views.view(views.clone(seen), B, K * times, T, D)
