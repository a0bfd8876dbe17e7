"""minigpt.optim.GaLoreAdamW, line by line: what it keeps of each tensor, and what its update makes on the way.

A matrix with sides short <= long, in elements of the gradient's dtype:

    kept            the projection, short r, and two moments of the projected gradient, long r each
    a step          the projected gradient, a root and the direction: long r each
    a projection    in float32 the two factors of an SVD, short^2 and short long, its singular values, short, and in
                    16 bits a float32 copy of the gradient

What is not projected keeps two moments of its own size, and a step makes its root and its direction.

Left out: what LAPACK allocates inside of the SVD.
"""

from __future__ import annotations

from minigpt.memory.engine.tape import ITEMSIZE, OPTIMIZER, Storage, Tape, Value


def state(tape: Tape, value: Value, rank: int) -> list[Storage]:
    """What is kept of ``value``: the projection to ``rank``, unless that is 0, and two moments."""
    short, long = sorted(value.shape) if rank else (0, 0)
    sizes = [short * rank, long * rank, long * rank] if rank else [value.numel] * 2
    return [Storage(tape, ITEMSIZE[value.dtype] * n, OPTIMIZER) for n in sizes]


def update(tape: Tape, value: Value, rank: int, kept: dict[Value, list[Storage]], projects: bool) -> None:
    """One step of ``value``; state that is not ``kept`` yet is born in it. ``projects``: so is a new projection."""
    each, size = ITEMSIZE[value.dtype], max(value.shape) * rank if rank else value.numel
    found = [_projection(tape, value, rank)] if rank and projects else []
    if value in kept and found:
        kept[value][0] = found[0]
    low = Storage(tape, each * size) if rank else None
    if value not in kept:
        kept[value] = found + [Storage(tape, each * size, OPTIMIZER) for _ in range(2)]
    root = Storage(tape, each * size)
    direction = Storage(tape, each * size)
    del root, low, direction


def _projection(tape: Tape, value: Value, rank: int) -> Storage:
    short, long = sorted(value.shape)
    whole = Storage(tape, 4 * value.numel) if ITEMSIZE[value.dtype] == 2 else None
    factors = [Storage(tape, 4 * n) for n in (value.shape[0] * short, short, short * value.shape[1])]
    del whole
    made = Storage(tape, ITEMSIZE[value.dtype] * short * rank, OPTIMIZER)
    del factors
    return made
