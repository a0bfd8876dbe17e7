"""Operations on each element by itself.

    scale, shift, add           save nothing
    gelu, silu, power, log      save their input; the layer after saves their output
    tanh, relu, sigmoid, exp    save their output
    multiply                    saves each factor, if the other takes a gradient
    dropout                     saves a mask as large as its input: in the input's dtype on a CPU, one byte on CUDA

A result lies in memory as its inputs do: ``layout`` has the rules.
"""

from __future__ import annotations

from functools import reduce

from minigpt.memory.engine import layout, views
from minigpt.memory.engine.casting import cast, elementwise, like, out_of, promote, raised
from minigpt.memory.engine.tape import Value

# ------------------------------------------------------------ of one


def unary(name: str, x: Value, saves_input=False, saves_output=False, scratch: int = 0) -> Value:
    """An elementwise operation whose backward makes one gradient, and ``scratch`` tensors like it on the way."""
    tape, place, dtype = x.storage.tape, x.layout, x.dtype

    def backward(g):
        work = [elementwise(tape, dtype, place) for _ in range(scratch)]  # noqa: F841  lives until this returns
        return [elementwise(tape, promote(g.dtype, dtype), g.layout, place)]

    return tape.record(name, (x,), out_of(x), [x.storage] if saves_input else (), backward, saves_output)


def scale(x: Value, in_place: bool = False) -> Value:
    """x times, or divided by, a number; also its negative."""
    tape = x.storage.tape
    out = views.overwritten(x) if in_place else out_of(x)
    return tape.record("scale", (x,), out, (), lambda g: [elementwise(tape, g.dtype, g.layout)])


def shift(x: Value) -> Value:
    """x plus a number: the gradient passes through untouched."""
    return x.storage.tape.record("add", (x,), out_of(x), (), lambda g: [g])


def gelu(x: Value) -> Value:
    return unary("gelu", x, saves_input=True)


def silu(x: Value) -> Value:
    return unary("silu", x, saves_input=True)


def relu(x: Value) -> Value:
    return unary("relu", x, saves_output=True)


def tanh(x: Value) -> Value:
    return unary("tanh", x, saves_output=True)


def sigmoid(x: Value) -> Value:
    return unary("sigmoid", x, saves_output=True)


def power(x: Value) -> Value:
    """x to a fixed power. Its backward makes x**(p-1), then p times that, then the gradient."""
    (x,) = raised(x)
    return unary("power", x, saves_input=True, scratch=2)


def rsqrt(x: Value) -> Value:
    (x,) = raised(x)
    return unary("rsqrt", x, saves_output=True, scratch=2)


def exp(x: Value) -> Value:
    (x,) = raised(x)
    return unary("exp", x, saves_output=True)


def log(x: Value) -> Value:
    (x,) = raised(x)
    return unary("log", x, saves_input=True)


def where(mask: Value, x: Value) -> Value:
    """torch.where(mask, x, number): the number is made a tensor, forward and backward."""
    tape = x.storage.tape
    shape, strides = layout.elementwise((mask.layout, x.layout))
    place = mask.layout

    def backward(g):
        number = tape.new((), g.dtype)  # noqa: F841  lives until this returns
        return [elementwise(tape, g.dtype, place, g.layout)]

    tape.doing = "where"
    number = tape.new((), x.dtype)
    out = tape.record("where", (x,), (shape, x.dtype, strides), [mask.storage], backward)
    del number
    return out


def mask_fill(x: Value, mask: Value) -> Value:
    """A number wherever a mask of bools says so."""
    tape = x.storage.tape
    shape, strides = layout.elementwise((x.layout, mask.layout))
    return tape.record(
        "mask", (x,), (shape, x.dtype, strides), [mask.storage], lambda g: [elementwise(tape, g.dtype, g.layout)]
    )


def dropout(x: Value, share: float) -> Value:
    """F.dropout: in training x times a random mask, which is saved."""
    tape = x.storage.tape
    if share == 0 or not tape.training:
        return x
    tape.doing = "dropout"
    noise = elementwise(tape, "bool" if tape.cuda else x.dtype, x.layout)
    place = x.layout

    def backward(g):
        return [elementwise(tape, g.dtype, g.layout, place)]

    return tape.record("dropout", (x,), out_of(x), [noise.storage], backward)


def clamp(x: Value, bounds: int) -> Value:
    """x within one or two bounds. Saves x; backward makes a mask for each bound."""
    tape, place, dtype = x.storage.tape, x.layout, x.dtype

    def backward(g):
        zero = tape.new((), dtype)  # noqa: F841  lives until this returns, as the masks do
        masks = [elementwise(tape, "bool", place) for _ in range(bounds)]
        del masks[1:]
        return [elementwise(tape, g.dtype, g.layout, place)]

    return tape.record("clamp", (x,), out_of(x), [x.storage], backward)


# ------------------------------------------------------------ of two


def saves_of(a: Value, b: Value) -> list:
    """What a product saves: each factor, if the other takes a gradient."""
    return [x.storage for x, other in ((a, b), (b, a)) if other.source is not None]


def add(a: Value, b: Value, in_place: bool = False) -> Value:
    """a + b. The gradient is shared, not copied, unless a side is broadcast or in another precision."""
    shape, strides = layout.elementwise((a.layout, b.layout))
    out = views.overwritten(a) if in_place else (shape, promote(a.dtype, b.dtype), strides)
    return a.storage.tape.record("add", (a, b), out, (), lambda g: [g, g])


def subtract(a: Value, b: Value) -> Value:
    """a - b: the second gradient is a negative, a tensor of its own."""
    shape, strides = layout.elementwise((a.layout, b.layout))
    out = shape, promote(a.dtype, b.dtype), strides
    wanted = b.source is not None
    return a.storage.tape.record("subtract", (a, b), out, (), lambda g: [g, like(g) if wanted else None])


def multiply(a: Value, b: Value, in_place: bool = False) -> Value:
    """a * b, elementwise; either may be broadcast or in lower precision."""
    tape = a.storage.tape
    shape, strides = layout.elementwise((a.layout, b.layout))
    left, right = (a.layout, a.dtype), (b.layout, b.dtype)
    wanted = a.source is not None, b.source is not None

    def backward(g):
        factors = ((wanted[0], right), (wanted[1], left))  # the second factor's gradient is made first
        made = [
            elementwise(tape, promote(g.dtype, dtype), g.layout, place) if want else None
            for want, (place, dtype) in reversed(factors)
        ]
        return made[::-1]

    out = views.overwritten(a) if in_place else (shape, promote(a.dtype, b.dtype), strides)
    return tape.record("multiply", (a, b), out, saves_of(a, b), backward)


def divide(a: Value, b: Value) -> Value:
    """a / b. Saves b, and a if b takes a gradient, which is -g * ((a / b) / b)."""
    tape = a.storage.tape
    shape, strides = layout.elementwise((a.layout, b.layout))
    left, right = a.layout, b.layout
    dtype = promote(a.dtype, b.dtype)
    wanted = a.source is not None, b.source is not None
    saves = [b.storage, a.storage] if wanted[1] else [b.storage]

    def backward(g):
        made: list[Value | None] = [None, None]
        if wanted[1]:
            quotient = elementwise(tape, dtype, left, right)
            negative = like(g)
            again = elementwise(tape, dtype, quotient.layout, right)
            made[1] = elementwise(tape, g.dtype, negative.layout, again.layout)
            del again, negative, quotient
        if wanted[0]:
            made[0] = elementwise(tape, g.dtype, g.layout, right)
        return made

    return tape.record("divide", (a, b), (shape, dtype, strides), saves, backward)


def cat(values: list[Value], dimension: int = -1) -> Value:
    """One after the other in a new tensor of the widest dtype, to which autocast casts them before; each gradient is a
    view of the whole one."""
    first, dtype = values[0], reduce(promote, (value.dtype for value in values))
    if first.storage.tape.autocast:
        values = [cast(value, dtype) for value in values]
    lengths = [value.shape[dimension] for value in values]
    dimension %= len(first.shape)
    shape = tuple(sum(lengths) if i == dimension else n for i, n in enumerate(first.shape))

    def backward(g):
        return [views.narrowed(g, dimension, length) for length in lengths]

    return first.storage.tape.record("concatenate", values, (shape, dtype, None), (), backward)
