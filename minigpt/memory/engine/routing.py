"""What a mixture of experts needs: the best of a row, rows by their number, and one product for all experts.

Each expert has its own matrix, and all of them lie in one tensor (E, n_out, n_in). ``grouped_mm`` multiplies rows that
are sorted by expert at once: what is made has as many rows as there are choices, however they fall on the experts.

Source: transformers 5.17's integrations/moe.py; torch 2.13's derivatives.yaml and FunctionsManual.cpp.
"""

from __future__ import annotations

from minigpt.memory.engine import ops, views
from minigpt.memory.engine.tape import Value


def topk(x: Value, k: int) -> tuple[Value, Value]:
    """The k largest of each row, and where they were, which is saved. The gradient is written into zeros."""
    tape, old, dtype = x.storage.tape, x.shape, x.dtype
    shape = (*old[:-1], k)
    largest = tape.new(shape, dtype)
    places = tape.new(shape, "int64")
    return tape.record("topk", (x,), largest, [places.storage], lambda g: [tape.new(old, dtype)]), places


def gather(x: Value, numbers: Value) -> Value:
    """``x.gather(1, numbers)``: of each row the numbers of its own. The gradient is added into zeros."""
    tape, old = x.storage.tape, x.shape
    saves = [x.storage, numbers.storage]
    return tape.record("gather", (x,), (numbers.shape, x.dtype, None), saves, lambda g: [tape.new(old, g.dtype)])


def rows(x: Value, numbers: Value) -> Value:
    """``x[numbers]``: numbers (S,) pick along the first dimension, and are saved. The gradient is added into zeros."""
    tape, old = x.storage.tape, x.shape
    out = (*numbers.shape, *old[1:]), x.dtype, None
    return tape.record("pick rows", (x,), out, [numbers.storage], lambda g: [tape.new(old, g.dtype)])


def fill_in_place(x: Value, mask: Value) -> Value:
    """``x.masked_fill_``: the same tensor; its gradient is another one."""
    tape = x.storage.tape
    out = Value(x.storage, x.shape, x.dtype, x.strides)
    return tape.record("mask", (x,), out, [mask.storage], lambda g: [ops.like(g)])


def sum_of(x: Value, dimension: int, keep: bool = False) -> Value:
    """The sum over one dimension. The gradient is seen as many, without a copy."""
    tape, old = x.storage.tape, x.shape
    dimension %= len(old)
    kept = (*old[:dimension], 1, *old[dimension + 1 :])
    shape = kept if keep else (*old[:dimension], *old[dimension + 1 :])

    def backward(g):
        return [views.expanded(views.reshaped(g, kept), old)]

    return tape.record("sum", (x,), (shape, x.dtype, None), (), backward)


def add_in_place(x: Value, y: Value) -> Value:
    """``x.add_(y)``, of one shape: the same tensor; both share the gradient."""
    x.storage.tape.refuse_in_place("the bias of experts")
    out = Value(x.storage, x.shape, x.dtype, x.strides)
    return x.storage.tape.record("add", (x, y), out, (), lambda g: [g, g])


def divide_in_place(x: Value, divisor: Value) -> Value:
    """``x /= divisor`` (N, 1), both with a gradient: a copy of x as it was is saved, beside the divisor."""
    tape = x.storage.tape
    if x.source is None and divisor.source is None:
        return x
    shape, dtype = x.shape, x.dtype
    before = tape.new(shape, dtype)

    def backward(g):
        quotients = [tape.new(shape, dtype) for _ in range(2)]
        negative = tape.new(shape, dtype)
        by_divisor = tape.new(shape, dtype)
        del quotients, negative
        return [tape.new(shape, dtype), by_divisor]

    out = Value(x.storage, shape, dtype, x.strides)
    return tape.record("divide", (x, divisor), out, [before.storage, divisor.storage], backward)


def grouped_mm(x: Value, weight: Value, offsets: Value, fallback: bool = False) -> Value:
    """Rows (S, n_in), sorted by expert, times (E, n_in, n_out); ``offsets`` (E,) is where each expert's rows end.

    The weight's gradient, of all experts, is made first, in the weight's own order. ``fallback`` is transformers'
    replacement for GPUs without the kernel: it saves both factors and makes both gradients, wanted or not.
    """
    tape = x.storage.tape
    x = ops.cast(x, weight.dtype)
    wanted = (True, True) if fallback else (x.source is not None, weight.source is not None)
    shape, dtype = x.shape, x.dtype
    stored, strides = weight.shape, weight.strides

    def backward(g, held=offsets if fallback else None):  # which the replacement keeps itself, not as a saved tensor
        for _ in range(sum(wanted)):
            tape.work.gradients(*shape, stored[2])
        if fallback:
            return [tape.new(shape, dtype), tape.new(stored, dtype, strides)]
        by_weight = tape.new(stored, dtype, strides) if wanted[1] else None
        return [tape.new(shape, dtype) if wanted[0] else None, by_weight]

    saves = [x.storage for _ in (0,) if wanted[1]] + [weight.storage for _ in (0,) if wanted[0]]
    saves += [] if fallback else [offsets.storage]
    out = tape.record("experts", (x, weight), ((shape[0], stored[2]), dtype, None), saves, backward)
    tape.multiplied(*shape, stored[2])
    return out


def baddbmm(x: Value, a: Value, b: Value, scaled: bool) -> Value:
    """x (E, n, m) plus a (E, n, r) @ b (E, r, m), times a number if ``scaled``; x takes no gradient."""
    tape = x.storage.tape
    shapes, dtype = (a.shape, b.shape), x.dtype

    def backward(g):
        made: list[Value | None] = [None]
        for shape in shapes:
            tape.work.gradients(*shapes[0], shapes[1][2])
            gradient = tape.new(shape, dtype)
            if scaled:
                gradient = tape.new(shape, dtype)
            made.append(gradient)
        return made

    out = tape.record("fold", (x, a, b), (x.shape, dtype, None), [a.storage, b.storage], backward)
    tape.multiplied(*a.shape, b.shape[2])
    return out
