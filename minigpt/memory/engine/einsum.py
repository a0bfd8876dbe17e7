"""torch.einsum of two factors: each is shown as (batch, rows, inner) by views, then one batched product.

On CUDA autocast casts einsum's own arguments, from the first to the last, and remembers a trained weight's; on a CPU it
knows no einsum and casts what the batched product is given: views, which it does not remember, from the last to the
first (``at::autocast``: einsum is in AT_FORALL_LOWER_PRECISION_FP, and not in the CPU's list).

Source: aten/src/ATen/native/Linear.cpp (einsum, sumproduct_pair) and aten/src/ATen/autocast_mode.cpp of torch 2.13.
"""

from __future__ import annotations

from math import prod

from minigpt.memory.engine import ops, views
from minigpt.memory.engine.tape import Value


def _cast(*values: Value) -> list[Value]:
    if not values[0].storage.tape.cuda:
        return list(values)
    return [ops.lowered(value)[0] for value in values]


def by_weight(x: Value, weight: Value) -> Value:
    """ "...a,ba->...b": x (..., n_in), weight (n_out, n_in)."""
    x, weight = _cast(x, weight)
    *rows, n_in = x.shape
    left, right = views.view(x, 1, prod(rows), n_in), views.view(views.transpose(weight, 0, 1), 1, n_in, -1)
    return views.view(ops.bmm(left, right), *rows, weight.shape[0])


def scores(q: Value, k: Value) -> Value:
    """ "...qd,...kd->...qk": (..., T, D) both, to (..., T, T)."""
    q, k = _cast(q, k)
    return _product(q, views.transpose(k, -2, -1))


def weighted(weights: Value, v: Value) -> Value:
    """ "...qk,...kd->...qd": (..., T, T) and (..., T, D), to (..., T, D)."""
    return _product(*_cast(weights, v))


def _product(a: Value, b: Value) -> Value:
    *batch, rows, inner = a.shape
    left, right = views.view(a, prod(batch), rows, inner), views.view(b, prod(batch), inner, -1)
    return views.view(ops.bmm(left, right), *batch, rows, b.shape[-1])
