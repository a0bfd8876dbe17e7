"""What each operation of a transformer costs: its output, what it saves, what its backward makes.

Every rule here was read off the operations that torch 2.13 runs on a CPU, and is held there by the tests
that compare prediction and meter. The rules that surprise people:

    linear          saves its input (if the weight is trained) and its weight, never its output
    gelu, silu      save their input; the layer after saves their output
    softmax, tanh   save their output
    dropout         saves a mask as large as its input: in the input's dtype on a CPU, one byte per element on CUDA
    cross_entropy   saves the log-probabilities: one copy of the logits, in the loss's precision
    casts           save nothing, but their results do not vanish: the next operation saves them
"""

from __future__ import annotations

from math import prod
from typing import Any

from minigpt.memory.engine import layout, views
from minigpt.memory.engine.tape import ITEMSIZE, Leaf, Tape, Value

FLOATING = ("float32", "float16", "bfloat16")


def promote(a: str, b: str) -> str:
    """The dtype of an operation on two."""
    if a == b:
        return a
    floating = [dtype for dtype in (a, b) if dtype in FLOATING]
    if len(floating) == 1:
        return floating[0]
    return "float32" if floating else max(a, b, key=ITEMSIZE.__getitem__)


def _elementwise(tape: Tape, dtype: str, *layouts: layout.Layout) -> Value:
    """A new tensor that lies as the inputs do."""
    shape, strides = layouts[0] if layouts.count(layouts[0]) == len(layouts) else layout.elementwise(layouts)
    if strides is not None and not layout.dense(shape, strides):
        shape, strides = layout.elementwise(layouts)
    return tape.new(shape, dtype, strides)


def like(x: Value) -> Value:
    """A new tensor of x's shape and dtype that lies as x does."""
    return _elementwise(x.storage.tape, x.dtype, x.layout)


def _saves(a: Value, b: Value) -> list:
    """What a product saves: each factor, if the other takes a gradient."""
    return [x.storage for x, other in ((a, b), (b, a)) if other.source is not None]


def _out(x: Value, dtype: str | None = None) -> tuple:
    strides = x.strides
    if strides is not None and not layout.dense(x.shape, strides):
        strides = layout.elementwise((x.layout,))[1]
    return x.shape, dtype or x.dtype, strides


def _unary(name: str, x: Value, saves_input=False, saves_output=False, scratch: int = 0) -> Value:
    """An elementwise operation whose backward makes one gradient, and ``scratch`` tensors like it on the way."""
    tape, place, dtype = x.storage.tape, x.layout, x.dtype

    def backward(g):
        work = [_elementwise(tape, dtype, place) for _ in range(scratch)]  # noqa: F841  lives until this returns
        return [_elementwise(tape, promote(g.dtype, dtype), g.layout, place)]

    return tape.record(name, (x,), _out(x), [x.storage] if saves_input else (), backward, saves_output)


def scale(x: Value, in_place: bool = False) -> Value:
    """x times, or divided by, a number; also its negative."""
    tape = x.storage.tape
    out = views.overwritten(x) if in_place else _out(x)
    return tape.record("scale", (x,), out, (), lambda g: [_elementwise(tape, g.dtype, g.layout)])


def shift(x: Value) -> Value:
    """x plus a number: the gradient passes through untouched."""
    return x.storage.tape.record("add", (x,), _out(x), (), lambda g: [g])


def gelu(x: Value) -> Value:
    return _unary("gelu", x, saves_input=True)


def silu(x: Value) -> Value:
    return _unary("silu", x, saves_input=True)


def relu(x: Value) -> Value:
    return _unary("relu", x, saves_output=True)


def tanh(x: Value) -> Value:
    return _unary("tanh", x, saves_output=True)


def sigmoid(x: Value) -> Value:
    return _unary("sigmoid", x, saves_output=True)


def power(x: Value) -> Value:
    """x to a fixed power. Its backward makes x**(p-1), then p times that, then the gradient."""
    (x,) = raised(x)
    return _unary("power", x, saves_input=True, scratch=2)


def rsqrt(x: Value) -> Value:
    (x,) = raised(x)
    return _unary("rsqrt", x, saves_output=True, scratch=2)


def softmax(x: Value) -> Value:
    """CUDA's backward makes gradient times output first, and its autocast a float32 result."""
    if _raises(x):
        return softmax_in_float32(x)
    return _unary("softmax", x, saves_output=True, scratch=int(x.storage.tape.cuda))


def softmax_in_float32(x: Value) -> Value:
    """F.softmax(x, dtype=float32). CUDA casts float16 on the way, forward and backward, and no other format."""
    tape = x.storage.tape
    if not (tape.cuda and x.dtype == "float16"):
        return softmax(cast(x, "float32"))
    place, dtype = x.layout, x.dtype

    def backward(g):
        product = _elementwise(tape, g.dtype, place)  # noqa: F841  gradient times output, until this returns
        return [_elementwise(tape, dtype, place)]

    return tape.record("softmax", (x,), _out(x, "float32"), (), backward, saves_output=True)


def mask_fill(x: Value, mask: Value) -> Value:
    """A number wherever a mask of bools says so."""
    tape = x.storage.tape
    shape, strides = layout.elementwise((x.layout, mask.layout))
    return tape.record(
        "mask", (x,), (shape, x.dtype, strides), [mask.storage], lambda g: [_elementwise(tape, g.dtype, g.layout)]
    )


def dropout(x: Value, share: float) -> Value:
    """F.dropout in training: x times a random mask, which is saved."""
    tape = x.storage.tape
    if share == 0:
        return x
    tape.doing = "dropout"
    noise = _elementwise(tape, "bool" if tape.cuda else x.dtype, x.layout)
    place = x.layout

    def backward(g):
        return [_elementwise(tape, g.dtype, g.layout, place)]

    return tape.record("dropout", (x,), _out(x), [noise.storage], backward)


def cast(x: Value, dtype: str) -> Value:
    """x in another precision; x itself if it has that precision already."""
    if x.dtype == dtype:
        return x
    tape, own = x.storage.tape, x.dtype
    return tape.record("cast", (x,), _out(x, dtype), (), lambda g: [tape.new(g.shape, own, _out(g)[2])])


def lowered(*values: Value | None) -> list[Any]:
    """What a matrix product takes: in autocast's dtype, if that is on. The casts of trained weights are cached.

    torch casts its arguments from the last to the first, which decides whose gradient is cast back first.
    """
    return [value and _lowered(value) for value in values]


def raised(*values: Value | None) -> list[Any]:
    """What CUDA's autocast leaves in float32 takes: powers, roots, softmax, norms. A CPU's leaves them as they are."""
    return [cast(value, "float32") if value is not None and _raises(value) else value for value in values]


def _raises(x: Value) -> bool:
    tape = x.storage.tape
    return tape.cuda and tape.autocast is not None and x.dtype in ("float16", "bfloat16")


def _lowered(x: Value) -> Value:
    tape = x.storage.tape
    dtype = tape.autocast
    if dtype is None or x.dtype == dtype or x.dtype not in FLOATING:
        return x
    if type(x.source) is not Leaf or x.dtype != "float32" or x.base is not None:
        return cast(x, dtype)
    if x.storage not in tape.casts:
        tape.casts[x.storage] = cast(x, dtype)
    return tape.casts[x.storage]


def add(a: Value, b: Value, in_place: bool = False) -> Value:
    """a + b. The gradient is shared, not copied, unless a side is broadcast or in another precision."""
    if in_place:
        out = views.overwritten(a)
    else:
        shape, strides = layout.elementwise((a.layout, b.layout))
        out = shape, promote(a.dtype, b.dtype), strides
    return a.storage.tape.record("add", (a, b), out, (), lambda g: [g, g])


def subtract(a: Value, b: Value) -> Value:
    """a - b: the second gradient is a negative, a tensor of its own."""
    shape, strides = layout.elementwise((a.layout, b.layout))
    out = shape, promote(a.dtype, b.dtype), strides
    wanted = b.source is not None
    return a.storage.tape.record("subtract", (a, b), out, (), lambda g: [g, like(g) if wanted else None])


def clamp(x: Value, bounds: int) -> Value:
    """x within one or two bounds. Saves x; backward makes a mask for each bound."""
    tape, place, dtype = x.storage.tape, x.layout, x.dtype

    def backward(g):
        zero = tape.new((), dtype)  # noqa: F841  lives until this returns, as the masks do
        masks = [_elementwise(tape, "bool", place) for _ in range(bounds)]
        del masks[1:]
        return [_elementwise(tape, g.dtype, g.layout, place)]

    return tape.record("clamp", (x,), _out(x), [x.storage], backward)


def largest_of_last(x: Value) -> Value:
    """x.max(-1, keepdim=True).values. Saves where it was; the gradient is written into zeros."""
    tape, old, dtype = x.storage.tape, x.shape, x.dtype
    shape = (*old[:-1], 1)
    values, places = tape.new(shape, dtype), tape.new(shape, "int64")
    return tape.record("max", (x,), values, [places.storage], lambda g: [tape.new(old, dtype)])


def multiply(a: Value, b: Value) -> Value:
    """a * b, elementwise; either may be broadcast or in lower precision."""
    tape = a.storage.tape
    shape, strides = layout.elementwise((a.layout, b.layout))
    left, right = (a.layout, a.dtype), (b.layout, b.dtype)
    wanted = a.source is not None, b.source is not None

    def backward(g):
        factors = ((wanted[0], right), (wanted[1], left))  # the second factor's gradient is made first
        made = [
            _elementwise(tape, promote(g.dtype, dtype), g.layout, place) if want else None
            for want, (place, dtype) in reversed(factors)
        ]
        return made[::-1]

    return tape.record("multiply", (a, b), (shape, promote(a.dtype, b.dtype), strides), _saves(a, b), backward)


def divide(a: Value, b: Value) -> Value:
    """a / b for a constant b, which is saved."""
    tape = a.storage.tape
    shape, strides = layout.elementwise((a.layout, b.layout))
    place = b.layout

    def backward(g):
        return [_elementwise(tape, g.dtype, g.layout, place), None]

    return tape.record("divide", (a, b), (shape, promote(a.dtype, b.dtype), strides), [b.storage], backward)


def mean_of_last(x: Value) -> Value:
    """The mean over the last dimension, which stays, with one element."""
    tape, old = x.storage.tape, x.shape
    out = (*old[:-1], 1), x.dtype, None
    return tape.record("mean", (x,), out, (), lambda g: [tape.new(old, g.dtype)])


# ------------------------------------------------------------ products


def mm(a: Value, b: Value) -> Value:
    """(m, k) @ (k, n). The second factor's gradient is made first, each in its factor's own order."""
    tape = a.storage.tape
    shape = a.shape[0], b.shape[1]
    return tape.record("linear", (a, b), (shape, a.dtype, None), _saves(a, b), _mm_backward(tape, a, b))


def _mm_backward(tape: Tape, a: Value, b: Value):
    wanted = a.source is not None, b.source is not None
    shapes, columns, dtype = (a.shape, b.shape), (_by_columns(a), _by_columns(b)), a.dtype

    def backward(g):
        made: list[Value | None] = [None, None]
        for i in (1, 0):
            if wanted[i]:
                n, m = shapes[i]
                made[i] = views.transposed(tape.new((m, n), dtype), 0, 1) if columns[i] else tape.new((n, m), dtype)
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
                n, m = shapes[i]
                made[i] = views.transposed(tape.new((m, n), dtype), 0, 1) if columns[i] else tape.new((n, m), dtype)
        return [g, *made]

    out = (a.shape[0], b.shape[1]), a.dtype, None
    return tape.record("linear", (bias, a, b), out, _saves(a, b), backward)


def linear(x: Value, weight: Value, bias: Value | None = None) -> Value:
    """F.linear: x (..., n_in) @ weight (n_out, n_in) transposed, plus bias (n_out)."""
    bias, weight, x = lowered(bias, weight, x)
    *rows, n_in = x.shape
    n_out = weight.shape[0]
    turned = views.transpose(weight, 0, 1)
    if bias is not None and x.strides is None:
        return views.view(addmm(bias, views.view(x, -1, n_in), turned), *rows, n_out)
    if turned.source is None and layout.view(x.shape, x.strides, (prod(rows), n_in)) is False:
        # A frozen weight is repeated for each sequence rather than the input copied.
        out = views.unsafe_view(_bmm(x, views.expand(views.unsqueeze(turned, 0), rows[0], n_in, n_out)), *rows, n_out)
    else:
        out = views.unsafe_view(mm(views.view(x, -1, n_in), turned), *rows, n_out)
    return out if bias is None else _add_in_place(out, bias)


def _add_in_place(x: Value, bias: Value) -> Value:
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
    turned, x = lowered(views.transpose(weight, 0, 1), x)
    *rows, n_in = x.shape
    product = views.unsafe_view(mm(views.view(x, -1, n_in), turned), *rows, turned.shape[1])
    return product if bias is None else add(product, bias)


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
        return [scale(tape.new(shape, g.dtype)) if want else None for want, shape in zip(wanted, shapes)]

    out = (a.shape[0], a.shape[1], b.shape[2]), a.dtype, None
    return tape.record("matmul", (a, b), out, _saves(a, b), backward)


def _bmm(a: Value, b: Value) -> Value:
    tape = a.storage.tape
    wanted, shapes = (a.source is not None, b.source is not None), (a.shape, b.shape)

    def backward(g):  # the second factor's gradient is made first
        made = [tape.new(shape, g.dtype) if want else None for want, shape in zip(wanted[::-1], shapes[::-1])]
        return made[::-1]

    out = (a.shape[0], a.shape[1], b.shape[2]), a.dtype, None
    return tape.record("matmul", (a, b), out, _saves(a, b), backward)


# ------------------------------------------------------------ layers


def embedding(indices: Value, table: Value) -> Value:
    """Rows of a table (V, C) for indices (B, T). Saves the indices; the gradient is a whole table."""
    tape, shape, dtype = table.storage.tape, table.shape, table.dtype
    out = (*indices.shape, shape[1]), dtype, None
    return tape.record("embedding", (table,), out, [indices.storage], lambda g: [tape.new(shape, g.dtype)])


def layer_norm(x: Value, weight: Value | None, bias: Value | None = None) -> Value:
    """Saves its input, and a mean and a reciprocal deviation for each row.

    These are in the weight's precision, which may be more than x's; CUDA has them in float32 always.
    """
    tape = x.storage.tape
    bias, weight, x = raised(bias, weight, x)
    tape.doing = "layer_norm"
    rows, dtype = (*x.shape[:-1], 1), x.dtype if weight is None else weight.dtype
    statistics = [tape.new(rows, "float32" if tape.cuda else dtype).storage for _ in range(2)]
    inputs = [value for value in (x, weight, bias) if value is not None]
    made = [(value.shape, value.dtype, value.source is not None) for value in inputs]

    def backward(g):
        return [tape.new(shape, dtype) if wanted else None for shape, dtype, wanted in made]

    out = tape.new(x.shape, x.dtype)
    saves = [x.storage, *statistics]
    if any(wanted for _, _, wanted in made):
        return tape.record("layer_norm", inputs, out, saves, backward)
    return out


def cross_entropy(logits: Value, targets: Value) -> Value:
    """Log-softmax, which saves its output, then the negative log-likelihood, which saves the targets."""
    tape = logits.storage.tape
    log_probabilities = _unary("log_softmax", logits, saves_output=True)
    tape.doing = "nll_loss"
    total_weight = tape.new((), logits.dtype)
    shape = logits.shape
    saves = [targets.storage, total_weight.storage]
    return tape.record(
        "nll_loss", (log_probabilities,), ((), logits.dtype, None), saves, lambda g: [tape.new(shape, g.dtype)]
    )
