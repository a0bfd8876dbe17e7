"""Products of matrices, and the layers that are one.

A product saves each factor, if the other takes a gradient: a linear layer its input, if the weight is trained, and its
weight, never its output. A factor's gradient lies as the factor does.
"""

from __future__ import annotations

from math import prod

from minigpt.memory.engine import layout, views
from minigpt.memory.engine.casting import lowered
from minigpt.memory.engine.pointwise import add, saves_of, scale
from minigpt.memory.engine.tape import Tape, Value


def mm(a: Value, b: Value) -> Value:
    """(m, k) @ (k, n). The second factor's gradient is made first, each in its factor's own order."""
    tape = a.storage.tape
    shape = a.shape[0], b.shape[1]
    out = tape.record("linear", (a, b), (shape, a.dtype, None), saves_of(a, b), _mm_backward(tape, a, b))
    if not tape.remembers:
        tape.kernels.product(tape, a, b)
    tape.multiplied(*a.shape, shape[1])
    return out


def _mm_backward(tape: Tape, a: Value, b: Value):
    wanted = a.source is not None, b.source is not None
    shapes, columns, dtype = (a.shape, b.shape), (_by_columns(a), _by_columns(b)), a.dtype

    def backward(g):
        made: list[Value | None] = [None, None]
        for i in (1, 0):
            if wanted[i]:
                tape.work.gradients(*shapes[0], shapes[1][1])
                n, m = shapes[i]
                made[i] = views.transposed(tape.new((m, n), dtype), 0, 1) if columns[i] else tape.new((n, m), dtype)
                tape.kernels.product(tape, g)
        return made

    return backward


def _by_columns(x: Value) -> bool:
    return x.strides is not None and x.strides == (1, x.shape[0])


def addmm(bias: Value, a: Value, b: Value) -> Value:
    """bias + a @ b. The first factor's gradient is made first; the bias's is the incoming one, summed."""
    tape = a.storage.tape
    wanted = a.source is not None, b.source is not None
    shapes, columns, dtype = (a.shape, b.shape), (_by_columns(a), _by_columns(b)), a.dtype

    def backward(g):
        made: list[Value | None] = [None, None]
        for i in (0, 1):
            if wanted[i]:
                tape.work.gradients(*shapes[0], shapes[1][1])
                n, m = shapes[i]
                made[i] = views.transposed(tape.new((m, n), dtype), 0, 1) if columns[i] else tape.new((n, m), dtype)
                tape.kernels.product(tape, g)
        return [g, *made]

    out = tape.record("linear", (bias, a, b), ((a.shape[0], b.shape[1]), dtype, None), saves_of(a, b), backward)
    if not tape.remembers:
        tape.kernels.product(tape, a, b, biased=True)
    tape.multiplied(*a.shape, b.shape[1])
    return out


def linear(x: Value, weight: Value, bias: Value | None = None) -> Value:
    """F.linear: x (..., n_in) @ weight (n_out, n_in) transposed, plus bias (n_out)."""
    bias, weight, x = lowered(bias, weight, x)
    *rows, n_in = x.shape
    n_out = weight.shape[0]
    if bias is not None and x.strides is None:
        flat = views.view(x, -1, n_in)  # before the weight is turned, whose gradient is therefore turned back first
        return views.view(addmm(bias, flat, views.transpose(weight, 0, 1)), *rows, n_out)
    turned = views.transpose(weight, 0, 1)
    if weight.source is None and layout.view(x.shape, x.strides, (prod(rows), n_in)) is False:
        # A frozen weight is repeated for each sequence rather than the input copied.
        out = views.unsafe_view(_bmm(x, views.expand(views.unsqueeze(turned, 0), rows[0], n_in, n_out)), *rows, n_out)
    else:
        out = views.unsafe_view(mm(views.view(x, -1, n_in), turned), *rows, n_out)
    return out if bias is None else _add_in_place(out, bias)


def _add_in_place(x: Value, bias: Value) -> Value:
    x.storage.tape.refuse_in_place("the bias of a linear layer of transposed inputs")
    out = Value(x.storage, x.shape, x.dtype, x.strides)
    return x.storage.tape.record("add", (x, bias), out, (), lambda g: [g, g])


def conv1d(x: Value, weight: Value, bias: Value) -> Value:
    """transformers' Conv1D, gpt2's layer: weight (n_in, n_out), the other way round."""
    *rows, n_in = x.shape
    flat = views.view(x, -1, n_in)
    weight, flat, bias = lowered(weight, flat, bias)
    return views.view(addmm(bias, flat, weight), *rows, weight.shape[1])


def matmul_then_add(x: Value, weight: Value, bias: Value | None = None) -> Value:
    """falcon's layer: x @ weight.T + bias. Autocast does not cache the cast of a weight that comes turned."""
    product = _times_matrix(x, views.transpose(weight, 0, 1))  # whose casts die with it
    return product if bias is None else add(product, bias)


def _times_matrix(x: Value, matrix: Value) -> Value:
    matrix, x = lowered(matrix, x)
    *rows, n_in = x.shape
    return views.unsafe_view(mm(views.view(x, -1, n_in), matrix), *rows, matrix.shape[1])


def matmul(a: Value, b: Value) -> Value:
    """(B, H, n, k) @ (B, H, k, m): one batched product; a factor whose batches are not in a row is copied.

    b may have one head for all of a's.
    """
    b, a = lowered(b, a)
    B, H, n, k = a.shape
    b = views.expand(b, B, H, -1, -1)
    left, right = views.view(a, B * H, n, k), views.view(b, B * H, k, b.shape[3])
    return views.unsafe_view(_bmm(left, right), B, H, n, b.shape[3])


def bmm(a: Value, b: Value) -> Value:
    """torch.bmm: (N, n, k) @ (N, k, m)."""
    b, a = lowered(b, a)
    return _bmm(a, b)


def baddbmm(bias: Value, a: Value, b: Value) -> Value:
    """bias + a @ b times a number, for a constant bias. The first factor's gradient is made first, then scaled."""
    tape = a.storage.tape
    b, a, bias = lowered(b, a, bias)
    wanted, shapes = (a.source is not None, b.source is not None), (a.shape, b.shape)

    def backward(g):
        _batched_gradients(tape, wanted, shapes)
        return [scale(tape.new(shape, g.dtype)) if want else None for want, shape in zip(wanted, shapes)]

    return _batched(tape, a, b, backward)


def _bmm(a: Value, b: Value) -> Value:
    tape = a.storage.tape
    wanted, shapes = (a.source is not None, b.source is not None), (a.shape, b.shape)

    def backward(g):  # the second factor's gradient is made first
        _batched_gradients(tape, wanted, shapes)
        made: list[Value | None] = [None, None]
        for i in (1, 0):
            if wanted[i]:
                made[i] = tape.new(shapes[i], g.dtype)
                tape.kernels.product(tape, g)
        return made

    return _batched(tape, a, b, backward)


def _batched(tape: Tape, a: Value, b: Value, backward) -> Value:
    out = (a.shape[0], a.shape[1], b.shape[2]), a.dtype, None
    made = tape.record("matmul", (a, b), out, saves_of(a, b), backward)
    if not tape.remembers:
        tape.kernels.product(tape, a, b)
    tape.multiplied(a.shape[0] * a.shape[1], a.shape[2], b.shape[2])
    return made


def _batched_gradients(tape: Tape, wanted: tuple[bool, bool], shapes) -> None:
    (N, n, k), (_, _, m) = shapes
    for _ in range(sum(wanted)):
        tape.work.gradients(N * n, k, m)
