"""transformers' Adafactor, line by line (``optimization.py``): what it keeps, and what its update makes on the way.

For a matrix it keeps a float32 number per row and per column, for a vector one per element, and for each the root mean
square of the weights. Several matrices in one tensor (E, n_out, n_in) have rows and columns of their own.
"""

from __future__ import annotations

from math import prod

from minigpt.memory.engine.tape import ITEMSIZE, OPTIMIZER, Storage, Tape, Value


def moments(shape: tuple[int, ...]) -> list[int]:
    """Numbers in each moment: rows and columns, or elements."""
    return [prod(shape[:-1]), prod(shape[:-2]) * shape[-1]] if len(shape) > 1 else [prod(shape)]


def state(tape: Tape, value: Value, resumed: bool) -> list[Storage]:
    """What is kept for ``value`` between steps: its moments, then the root mean square."""
    each = ITEMSIZE[value.dtype] if resumed else 4  # torch casts what it loads to the weight's dtype
    return [Storage(tape, each * n, OPTIMIZER) for n in (*moments(value.shape), 1)]


def update(tape: Tape, values: list[Value], kept: dict[Value, list[Storage]], resumed: bool) -> None:
    """One step of ``values``; state that is not ``kept`` yet is born in it. Names stay bound until the next tensor."""

    def new(numbers: int, bucket: int | None = None) -> Storage:
        return Storage(tape, 4 * numbers, bucket)

    def root_mean_square(bucket: int | None = None) -> Storage:
        norm = new(1)  # noqa: F841  lives until this returns
        return new(1, bucket)

    gradient = weight = change = None
    for value in values:
        n, sizes, half = value.numel, moments(value.shape), ITEMSIZE[value.dtype] == 2
        gradient = None
        gradient = new(n) if half else None
        if value not in kept:
            kept[value] = [new(size, OPTIMIZER) for size in sizes]
        elif resumed and half:
            for i, size in enumerate(sizes):
                kept[value][i] = new(size, OPTIMIZER)
        weight = None
        weight = new(n) if half else None
        kept[value][len(sizes) :] = [root_mean_square(OPTIMIZER)]
        square = new(n)
        change = new(n)  # the square and a little more
        del square
        if len(sizes) > 1:
            for size in sizes:
                new(size)  # its mean
            mean = new(prod(value.shape[:-2]))
            factors = [new(sizes[0])]
            del mean
            factors.append(new(sizes[1]))
            change = new(n)
            del factors
        else:
            change = new(n)
        share = root_mean_square()
        new(1)  # over the threshold
        del share
        new(n)  # the negative, which is added
    del gradient, weight, change
