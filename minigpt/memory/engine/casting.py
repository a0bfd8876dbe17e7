"""In which precision and order a result is made; casts; and what autocast casts.

A cast saves nothing, but its result does not vanish: the next operation saves it.
"""

from __future__ import annotations

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


def elementwise(tape: Tape, dtype: str, *layouts: layout.Layout) -> Value:
    """A new tensor that lies as the inputs do."""
    shape, strides = layouts[0] if layouts.count(layouts[0]) == len(layouts) else layout.elementwise(layouts)
    if strides is not None and not layout.dense(shape, strides):
        shape, strides = layout.elementwise(layouts)
    return tape.new(shape, dtype, strides)


def like(x: Value) -> Value:
    """A new tensor of x's shape and dtype that lies as x does."""
    return elementwise(x.storage.tape, x.dtype, x.layout)


def out_of(x: Value, dtype: str | None = None) -> tuple:
    """What ``Tape.record`` makes a result like x from: its shape, its dtype, its strides."""
    strides = x.strides
    if strides is not None and not layout.dense(x.shape, strides):
        strides = layout.elementwise((x.layout,))[1]
    return x.shape, dtype or x.dtype, strides


def cast(x: Value, dtype: str) -> Value:
    """x in another precision; x itself if it has that precision already."""
    if x.dtype == dtype:
        return x
    tape, own = x.storage.tape, x.dtype
    return tape.record("cast", (x,), out_of(x, dtype), (), lambda g: [tape.new(g.shape, own, out_of(g)[2])])


# ------------------------------------------------------------ autocast


def lowered(*values: Value | None) -> list[Any]:
    """What a matrix product takes: in autocast's dtype, if that is on. The casts of trained weights are cached.

    torch casts its arguments from the last to the first, which decides whose gradient is cast back first.
    """
    return [value and _lowered(value) for value in values]


def _lowered(x: Value) -> Value:
    tape = x.storage.tape
    dtype = tape.autocast
    if dtype is None or x.dtype == dtype or x.dtype not in FLOATING:
        return x
    if not _remembered(x):
        return cast(x, dtype)
    if x.source not in tape.casts:
        tape.casts[x.source] = cast(x, dtype)
    return tape.casts[x.source]


def _remembered(x: Value) -> bool:
    """Whether autocast keeps the cast of x: it does of any leaf in float32 that takes a gradient."""
    return type(x.source) is Leaf and x.dtype == "float32" and x.base is None


def lowered_unrecorded(x: Value) -> Value:
    """x as a product without autograd takes it. torch's cache does not ask: what it keeps of a leaf is a constant."""
    tape, inside = x.storage.tape, views.detach(x)
    if tape.autocast is None or not _remembered(x):
        return inside
    if x.source not in tape.casts:
        tape.casts[x.source] = cast(inside, tape.autocast)
    return views.detach(tape.casts[x.source])


def raised(*values: Value | None) -> list[Any]:
    """What CUDA's autocast leaves in float32 takes: powers, roots, softmax, norms. A CPU's leaves them as they are."""
    return [cast(value, "float32") if value is not None and raises(value) else value for value in values]


def raises(x: Value) -> bool:
    """Whether CUDA's autocast casts x up."""
    tape = x.storage.tape
    return tape.cuda and tape.autocast is not None and x.dtype in ("float16", "bfloat16")
