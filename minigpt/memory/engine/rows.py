"""Operations that take a row as a whole, along the last dimension: softmax, norms, the loss; and rows out of a table.

    softmax          saves its output
    layer_norm       saves its input, and two numbers for each row
    cross_entropy    saves the log-probabilities: one copy of the logits, in the loss's precision
    embedding        saves the indices; its gradient is a whole table

A loss in chunks, and others, are in ``families.losses``.
"""

from __future__ import annotations

from math import prod
from typing import Any

from minigpt.memory.engine import views
from minigpt.memory.engine.casting import cast, elementwise, out_of, raised, raises
from minigpt.memory.engine.pointwise import unary
from minigpt.memory.engine.tape import Value

PAIR = 16  # bytes: a value and where it was, as CUDA looks for a maximum


def softmax(x: Value) -> Value:
    """CUDA's backward makes gradient times output first, and its autocast a float32 result."""
    if raises(x):
        return softmax_in_float32(x)
    return unary("softmax", x, saves_output=True, scratch=int(x.storage.tape.cuda))


def softmax_in_float32(x: Value) -> Value:
    """F.softmax(x, dtype=float32). CUDA casts float16 on the way, forward and backward, and no other format."""
    tape = x.storage.tape
    if not (tape.cuda and x.dtype == "float16"):
        return softmax(cast(x, "float32"))
    place, dtype = x.layout, x.dtype

    def backward(g):
        product = elementwise(tape, g.dtype, place)  # noqa: F841  gradient times output, until this returns
        return [elementwise(tape, dtype, place)]

    return tape.record("softmax", (x,), out_of(x, "float32"), (), backward, saves_output=True)


def mean_of_last(x: Value) -> Value:
    """The mean over the last dimension, which stays, with one element."""
    tape, old = x.storage.tape, x.shape
    out = (*old[:-1], 1), x.dtype, None
    made = tape.record("mean", (x,), out, (), lambda g: [tape.new(old, g.dtype)])
    tape.kernels.reduction(x, tuple(range(len(old) - 1)))
    return made


def sum_of_last(x: Value) -> Value:
    """x.sum(-1, keepdim=True), in float32 under CUDA's autocast. Its gradient is seen many times, and not copied."""
    tape, old = x.storage.tape, x.shape
    dtype = "float32" if raises(x) else x.dtype
    out = tape.record("sum", (x,), ((*old[:-1], 1), dtype, None), (), lambda g: [views.expanded(g, old)])
    tape.kernels.reduction(x, tuple(range(len(old) - 1)))
    return out


def mean_of_all(x: Value) -> Value:
    tape, old = x.storage.tape, x.shape
    out = tape.record("mean", (x,), ((), x.dtype, None), (), lambda g: [tape.new(old, g.dtype)])
    tape.kernels.reduction(x, ())
    return out


def gather_of_last(x: Value, places: Value) -> Value:
    """One of each row, (..., 1). Saves x itself; the gradient is written into zeros."""
    tape, old, dtype = x.storage.tape, x.shape, x.dtype
    out = (*old[:-1], 1), dtype, None
    return tape.record("gather", (x,), out, [x.storage, places.storage], lambda g: [tape.new(old, dtype)])


def largest_of_last(x: Value) -> Value:
    """x.max(-1, keepdim=True).values. Saves where it was; the gradient is written into zeros."""
    tape, old, dtype = x.storage.tape, x.shape, x.dtype
    shape = (*old[:-1], 1)
    values, places = tape.new(shape, dtype), tape.new(shape, "int64")
    tape.kernels.reduction(x, tuple(range(len(old) - 1)), PAIR)
    return tape.record("max", (x,), values, [places.storage], lambda g: [tape.new(old, dtype)])


def layer_norm(x: Value, weight: Value | None, bias: Value | None = None) -> Value:
    """Saves its input, and a mean and a reciprocal deviation for each row.

    These are in the weight's precision, which may be more than x's; CUDA has them in float32 always.
    """
    tape = x.storage.tape
    bias, weight, x = raised(bias, weight, x)
    tape.doing = "layer_norm"
    rows, dtype = (*x.shape[:-1], 1), x.dtype if weight is None else weight.dtype
    first = tape.new(x.shape, x.dtype) if tape.cuda else None
    statistics = [tape.new(rows, "float32" if tape.cuda else dtype).storage for _ in range(2)]
    inputs = [value for value in (x, weight, bias) if value is not None]
    made = [(value.shape, value.dtype, value.source is not None) for value in inputs]

    def backward(g):
        gradients = [tape.new(shape, dtype) if wanted else None for shape, dtype, wanted in made]
        return tape.kernels.layer_norm(tape, gradients, prod(rows))

    out = first or tape.new(x.shape, x.dtype)
    saves = [x.storage, *statistics]
    if any(wanted for _, _, wanted in made):
        return tape.record("layer_norm", inputs, out, saves, backward)
    return out


def cross_entropy(logits: Value, targets: Value) -> Value:
    """Log-softmax, which saves its output, then the negative log-likelihood, which saves its input and the targets.

    A CPU's autocast computes both in float32. CUDA's leaves the log-softmax as the logits are, since cross_entropy_loss
    asks for their precision by name, and casts its result.
    """
    tape = logits.storage.tape
    taken = logits if tape.autocast is None or tape.cuda else cast(logits, "float32")
    made = unary("log_softmax", taken, saves_output=True)  # bound to the end
    log_probabilities = made if tape.autocast is None else cast(made, "float32")
    tape.doing = "nll_loss"
    dtype = log_probabilities.dtype
    out: Any = tape.new((), dtype) if tape.cuda else ((), dtype, None)  # CUDA's is the first of two, a CPU's the last
    total_weight = tape.new((), dtype)
    shape = logits.shape
    saves = [log_probabilities.storage, targets.storage, total_weight.storage]
    return tape.record("nll_loss", (log_probabilities,), out, saves, lambda g: [tape.new(shape, g.dtype)])


def rows_by_index(indices: Value, table: Value) -> Value:
    """``table[indices, :]``: as ``embedding``, but the gradient is put into zeros row by row, which CUDA sorts for."""
    tape, shape = table.storage.tape, table.shape
    out, picks = ((*indices.shape, shape[1]), table.dtype, None), indices.numel

    def backward(g):
        whole = tape.new(shape, g.dtype)
        tape.kernels.index_put(tape, picks, shape[0])
        return [whole]

    return tape.record("index", (table,), out, [indices.storage], backward)


def embedding(indices: Value, table: Value) -> Value:
    """Rows of a table (V, C) for indices (B, T). Saves the indices; the gradient is a whole table."""
    tape, shape, dtype = table.storage.tape, table.shape, table.dtype
    out, picks = ((*indices.shape, shape[1]), dtype, None), indices.numel
    return tape.record(
        "embedding", (table,), out, [indices.storage], lambda g: [tape.kernels.embedding(tape, picks, shape, g.dtype)]
    )
