"""How a tensor lies in its storage: shapes and strides, by torch's own rules.

Whether an operation copies depends on the layout alone: a view needs dimensions that merge, a batched product
needs its batches in a row, and an elementwise result lies as its inputs do. Strides count elements. None stands for
the usual layout, row after row without gaps, so that most comparisons are one.

The rules are ATen's: ``computeStride`` (TensorUtils.cpp) and ``TensorIterator::reorder_dimensions``.
"""

from __future__ import annotations

from functools import cache
from typing import Literal

Shape = tuple[int, ...]
Strides = tuple[int, ...] | None
Layout = tuple[Shape, Strides]


@cache
def contiguous(shape: Shape) -> Shape:
    """The strides of a tensor without gaps, the last dimension fastest."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


@cache
def plain(shape: Shape, strides: Strides) -> Strides:
    """``strides``, or None where they are the usual ones; a dimension of one element has none that matters."""
    if strides is None or 0 in shape:
        return None
    usual = contiguous(shape)
    return None if all(n == 1 or s == u for n, s, u in zip(shape, strides, usual, strict=True)) else strides


@cache
def view(shape: Shape, strides: Strides, new: Shape) -> Strides | Literal[False]:
    """The strides that show the same elements as ``new``, or False where only a copy can."""
    if strides is None:
        return None
    chunk = strides[-1]  # the dimensions that merge, from the last on
    result, place, seen, numel = [0] * len(new), len(new) - 1, 1, 1
    for i in reversed(range(len(shape))):
        numel *= shape[i]
        if i == 0 or (shape[i - 1] != 1 and strides[i - 1] != numel * chunk):
            while place >= 0 and (seen < numel or new[place] == 1):
                result[place] = seen * chunk
                seen *= new[place]
                place -= 1
            if seen != numel:
                return False
            if i > 0:
                chunk, seen, numel = strides[i - 1], 1, 1
    return plain(new, tuple(result)) if place == -1 else False


def transpose(shape: Shape, strides: Strides, a: int, b: int) -> Layout:
    """Two dimensions exchanged."""
    order = list(range(len(shape)))
    order[a], order[b] = order[b], order[a]
    return permute(shape, strides, tuple(order))


@cache
def permute(shape: Shape, strides: Strides, order: tuple[int, ...]) -> Layout:
    """The dimensions in another order."""
    old = contiguous(shape) if strides is None else strides
    new = tuple(shape[i] for i in order)
    return new, plain(new, tuple(old[i] for i in order))


@cache
def dense(shape: Shape, strides: Strides) -> bool:
    """Whether the elements fill a piece of memory, each once, in any order."""
    if strides is None:
        return True
    step = 1
    for stride, size in sorted((s, n) for s, n in zip(strides, shape, strict=True) if n != 1):
        if stride != step:
            return False
        step *= size
    return True


@cache
def elementwise(layouts: tuple[Layout, ...]) -> Layout:
    """The shape to which the inputs broadcast, and how the result lies."""
    shapes = [shape for shape, _ in layouts]
    depth = max(map(len, shapes))
    padded = [(1,) * (depth - len(shape)) + shape for shape in shapes]
    shape = tuple(1 if set(sizes) == {1} else max(n for n in sizes if n != 1) for sizes in zip(*padded, strict=True))
    if all(strides is None and own == shape for own, strides in layouts):
        return shape, None
    same = {strides for own, strides in layouts if own == shape}
    if len(same) == 1 and all(own == shape for own in shapes) and dense(shape, strides := same.pop()):
        return shape, strides
    steps = [_broadcast_strides(own, strides, shape) for own, strides in layouts]
    order = _fastest_first(shape, steps)
    result, step = [0] * depth, 1
    for dimension in order:
        result[dimension] = step
        step *= shape[dimension]
    return shape, plain(shape, tuple(result))


def _broadcast_strides(own: Shape, strides: Strides, shape: Shape) -> Shape:
    """An input's strides in the result's dimensions; 0 where it repeats."""
    strides = contiguous(own) if strides is None else strides
    missing = len(shape) - len(own)
    return (0,) * missing + tuple(
        0 if n == 1 and shape[i + missing] != 1 else s for i, (n, s) in enumerate(zip(own, strides, strict=True))
    )


def _fastest_first(shape: Shape, steps: list[Shape]) -> list[int]:
    """The dimensions from the fastest to the slowest: a stable insertion sort, the last dimension first."""
    order = list(reversed(range(len(shape))))
    for i in range(1, len(order)):
        place = i
        for j in reversed(range(i)):
            verdict = _compare(order[j], order[place], shape, steps)
            if verdict > 0:
                order[j], order[place] = order[place], order[j]
                place = j
            elif verdict < 0:
                break
    return order


def _compare(a: int, b: int, shape: Shape, steps: list[Shape]) -> int:
    for own in steps:
        if own[a] == 0 or own[b] == 0:
            continue
        if own[a] != own[b]:
            return -1 if own[a] < own[b] else 1
        if shape[a] > shape[b]:
            return 1
    return 0
