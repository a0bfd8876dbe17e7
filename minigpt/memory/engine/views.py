"""Other shapes of the same storage, and the copies that torch makes where a storage cannot be seen so.

A view costs nothing, in forward or backward, but it has its price later: a batched product copies a tensor whose
heads are interleaved, and a gradient that is a view cannot be added to in place.
"""

from __future__ import annotations

from minigpt.memory.engine import layout
from minigpt.memory.engine.layout import Shape, Strides
from minigpt.memory.engine.tape import Value


def _same_storage(x: Value, shape: Shape, strides: Strides, base: bool = True) -> Value:
    """``base`` False: torch's _unsafe_view, which does not remember where it came from."""
    return Value(x.storage, shape, x.dtype, strides, base=(x.base or x) if base else None)


def _resolve(x: Value, shape: Shape) -> Shape:
    """``shape`` with its -1 replaced."""
    if -1 not in shape:
        return shape
    known = 1
    for size in shape:
        known *= size if size != -1 else 1
    return tuple(x.numel // known if size == -1 else size for size in shape)


def overwritten(x: Value) -> Value:
    """x as an operation in place leaves it."""
    return Value(x.storage, x.shape, x.dtype, x.strides, base=x.base)


def detach(x: Value) -> Value:
    """x as a constant to autograd."""
    return Value(x.storage, x.shape, x.dtype, x.strides)


def reshaped(x: Value, shape: Shape) -> Value:
    """x in another shape, without a record: a view where the layout allows one, or else a copy."""
    strides = layout.view(x.shape, x.strides, shape)
    if strides is False:
        return x.storage.tape.new(shape, x.dtype)
    return _same_storage(x, shape, strides)


def view(x: Value, *shape: int) -> Value:
    """``x.reshape(shape)``, which is ``x.view(shape)`` where the layout allows it."""
    tape, old, shape = x.storage.tape, x.shape, _resolve(x, shape)
    if shape == old:
        return alias(x)
    strides = layout.view(old, x.strides, shape)
    if strides is False:
        return unsafe_view(contiguous(x), *shape)
    return tape.record("view", (x,), _same_storage(x, shape, strides), (), lambda g: [reshaped(g, old)])


def unsafe_view(x: Value, *shape: int) -> Value:
    """As ``view``, for a result that nothing else refers to."""
    tape, old, shape = x.storage.tape, x.shape, _resolve(x, shape)
    strides = layout.view(old, x.strides, shape)
    out = _same_storage(x, shape, None if strides is False else strides, base=False)
    return tape.record("view", (x,), out, (), lambda g: [reshaped(g, old)])


def alias(x: Value) -> Value:
    """``x[:]``: the same tensor by another name."""
    return x.storage.tape.record("view", (x,), _same_storage(x, x.shape, x.strides), (), lambda g: [g])


def transposed(x: Value, a: int, b: int) -> Value:
    """Two dimensions exchanged, without a record."""
    return _same_storage(x, *layout.transpose(x.shape, x.strides, a % len(x.shape), b % len(x.shape)))


def transpose(x: Value, a: int, b: int) -> Value:
    return x.storage.tape.record("transpose", (x,), transposed(x, a, b), (), lambda g: [transposed(g, a, b)])


def permute(x: Value, *order: int) -> Value:
    inverse = tuple(order.index(i) for i in range(len(order)))

    def permuted(y: Value, order: tuple[int, ...]) -> Value:
        return _same_storage(y, *layout.permute(y.shape, y.strides, order))

    return x.storage.tape.record("permute", (x,), permuted(x, order), (), lambda g: [permuted(g, inverse)])


def unsqueeze(x: Value, place: int) -> Value:
    """A dimension of one element before dimension ``place``."""
    place %= len(x.shape) + 1
    old, shape = x.shape, (*x.shape[:place], 1, *x.shape[place:])
    strides = x.strides and (*x.strides[:place], 0, *x.strides[place:])
    out = _same_storage(x, shape, layout.plain(shape, strides))
    return x.storage.tape.record("unsqueeze", (x,), out, (), lambda g: [reshaped(g, old)])


def expand(x: Value, *shape: int) -> Value:
    """Repeated without a copy; the gradient is summed over what repeats."""
    shape = tuple(n if n != -1 else x.shape[i] for i, n in enumerate(shape))
    if shape == x.shape:
        return x
    tape, old = x.storage.tape, x.shape
    return tape.record("expand", (x,), expanded(x, shape), (), lambda g: [tape.new(old, g.dtype)])


def expanded(x: Value, shape: Shape) -> Value:
    """As ``expand``, without a record."""
    strides = layout.contiguous(x.shape) if x.strides is None else x.strides
    steps = tuple(0 if n != m else s for n, m, s in zip(x.shape, shape, strides, strict=True))
    return _same_storage(x, shape, layout.plain(shape, steps))


def contiguous(x: Value) -> Value:
    """x itself, or a copy in the usual order."""
    return x if x.strides is None else clone(x)


def clone(x: Value, preserve: bool = False) -> Value:
    """A copy, in the usual order or, with ``preserve``, in x's own; the gradient passes through untouched."""
    strides = x.strides if preserve and layout.dense(x.shape, x.strides) else None
    return x.storage.tape.record("copy", (x,), (x.shape, x.dtype, strides), (), lambda g: [g])


def narrowed(x: Value, dimension: int, length: int) -> Value:
    """Some of one dimension, without a record. Where it starts does not matter to memory."""
    dimension %= len(x.shape)
    strides = layout.contiguous(x.shape) if x.strides is None else x.strides
    shape = tuple(length if i == dimension else n for i, n in enumerate(x.shape))
    return _same_storage(x, shape, layout.plain(shape, strides))


def narrow(x: Value, dimension: int, length: int, alias_whole: bool = True) -> Value:
    """A slice of one dimension. Its gradient is a whole tensor of zeros with that part written in.

    ``alias_whole``: Python's indexing makes nothing of a slice that leaves nothing out.
    """
    tape, old = x.storage.tape, x.shape
    if length == old[dimension] and alias_whole:
        return alias(x)
    out = narrowed(x, dimension, length)
    return tape.record("slice", (x,), out, (), lambda g: [tape.new(old, g.dtype)])


def every_other(x: Value) -> Value:
    """``x[..., ::2]``, or the others. Its gradient is a whole tensor of zeros with that part written in."""
    tape, old = x.storage.tape, x.shape
    strides = layout.contiguous(old) if x.strides is None else x.strides
    shape, steps = (*old[:-1], old[-1] // 2), (*strides[:-1], 2 * strides[-1])
    out = _same_storage(x, shape, layout.plain(shape, steps))
    return tape.record("slice", (x,), out, (), lambda g: [tape.new(old, g.dtype)])


def select(x: Value, dimension: int) -> Value:
    """One of a dimension, which goes. Its gradient is a whole tensor of zeros with that part written in."""
    tape, old = x.storage.tape, x.shape
    strides = layout.contiguous(old) if x.strides is None else x.strides
    dimension %= len(old)
    shape, strides = ((*sizes[:dimension], *sizes[dimension + 1 :]) for sizes in (old, strides))
    out = _same_storage(x, shape, layout.plain(shape, strides))
    return tape.record("select", (x,), out, (), lambda g: [tape.new(old, g.dtype)])


def pick(x: Value, dimension: int) -> Value:
    """``x[..., [i], :]``: one of a dimension, which stays; by a list, so a copy, and the list is saved as a tensor."""
    tape, old = x.storage.tape, x.shape
    tape.doing = "index"
    dimension %= len(old)
    out = tuple(1 if i == dimension else n for i, n in enumerate(old)), x.dtype, None
    saves = [tape.new((1,), "int64").storage]
    return tape.record("index", (x,), out, saves, lambda g: [tape.new(old, g.dtype)])


def split(x: Value, lengths: list[int], dimension: int = -1) -> list[Value]:
    """Views of parts; backward concatenates their gradients into a new tensor, with zeros for those that have none."""
    tape, old = x.storage.tape, x.shape
    outs = [narrowed(x, dimension, length) for length in lengths]

    def backward(*gradients):
        given = next(g for g in gradients if g is not None)
        zeros = [tape.new(out, given.dtype) for out, g in zip(shapes, gradients) if g is None]  # noqa: F841
        return [tape.new(old, given.dtype)]

    shapes = [out.shape for out in outs]
    tape.record("split", (x,), outs[0], (), backward, outputs=len(lengths))
    for i, out in enumerate(outs):
        out.source, out.output = outs[0].source, i
    return outs


def unbind(x: Value) -> list[Value]:
    """Views of each of the first dimension, which goes; backward stacks their gradients into a new tensor."""
    tape, old = x.storage.tape, x.shape
    strides = layout.contiguous(old) if x.strides is None else x.strides
    outs = [_same_storage(x, old[1:], layout.plain(old[1:], strides[1:])) for _ in range(old[0])]

    def backward(*gradients):
        given = next(g for g in gradients if g is not None)
        return [tape.new(old, given.dtype)]

    tape.record("unbind", (x,), outs[0], (), backward, outputs=old[0])
    for i, out in enumerate(outs):
        out.source, out.output = outs[0].source, i
    return outs


def write(whole: Value, part: Value) -> Value:
    """``whole[..., :n].copy_(part)``, or any other n of the last dimension: the same tensor (torch's CopySlices).

    Backward copies the whole gradient, and of its copy the part; what was overwritten gets zeros.
    """
    tape, shape, dtype, strides = whole.storage.tape, whole.shape, whole.dtype, whole.strides
    written, wanted, cast = part.shape, (whole.source is not None, part.source is not None), part.dtype

    def backward(g):
        result = tape.new(shape, dtype, strides)
        piece = tape.new(written, dtype)
        zeros = tape.new(written, dtype) if wanted[0] else None  # noqa: F841  lives until this returns
        if wanted[1] and cast != dtype:
            piece = tape.new(written, cast)
        return [result if wanted[0] else None, piece if wanted[1] else None]

    return tape.record("write", (whole, part), overwritten(whole), (), backward)


def repeat_heads(x: Value, times: int) -> Value:
    """transformers' repeat_kv: (B, K, T, D) to (B, K times, T, D); a copy, unless it can be seen so."""
    if times == 1:
        return x
    B, K, T, D = x.shape
    return view(expand(unsqueeze(x, 2), B, K, times, T, D), B, K * times, T, D)
