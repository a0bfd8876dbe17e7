"""The scratch of CUDA's reductions: a buffer for parts of sums that several blocks of threads share, and semaphores.

A sum, mean or maximum gives each output to one block of threads, unless there are few outputs with many inputs each:
then several blocks work on one and leave their parts in memory. ``scratch`` follows ``setReduceConfig`` step by step.

    block      512 threads, or 128 where each has 4 outputs of a row: as wide as what lies in a row, at most 32 if it
               can be high as well
    values     inputs that remain for a thread; from 256 on they are divided among blocks, at least 16 for each
    buffer     bytes of a running value x outputs x blocks for each, x block width where a block has a row of outputs
    semaphores 4 bytes for each group of blocks

Source: aten/src/ATen/native/cuda/Reduce.cuh of torch 2.13 (its header is in every wheel of torch).
"""

from __future__ import annotations

from typing import NamedTuple

from minigpt.memory.engine import layout

MOST_THREADS, WARP = 512, 32
LEAST_VALUES, MOST_VALUES = 16, 256  # of a thread
VECTOR = 4  # values that a thread loads at once


class Side(NamedTuple):
    """Dimensions of one kind, the fastest first, merged where they follow each other in memory."""

    sizes: list[int]
    strides: list[int]

    @property
    def numel(self) -> int:
        product = 1
        for size in self.sizes:
            product *= size
        return product


def scratch(
    shape: layout.Shape, strides: layout.Strides, kept: tuple[int, ...], itemsize: int, processors: int, threads: int
) -> tuple[int, int]:
    """(bytes of the buffer, bytes of the semaphores) of a reduction to the dimensions ``kept``; 0 for none.

    ``itemsize``: bytes of a running value. ``processors``: the card's multiprocessors, of ``threads`` each.
    """
    steps = layout.contiguous(shape) if strides is None else strides
    outputs = _merged([(steps[i], shape[i]) for i in kept if shape[i] != 1])
    inputs = _merged([(steps[i], shape[i]) for i in range(len(shape)) if i not in kept and shape[i] != 1])
    if not inputs.sizes:
        return 0, 0
    along_row = not outputs.sizes or inputs.strides[0] < outputs.strides[0]
    width, height = (inputs.numel, outputs.numel) if along_row else (outputs.numel, inputs.numel)
    vector = 1
    if along_row and inputs.strides[0] == 1 and width > 128 and len(inputs.sizes) == 1:
        width //= VECTOR
    elif not along_row and outputs.strides[0] == 1:
        vector = _vector(outputs, inputs)
        width //= vector
    width, height = _block(width, height, MOST_THREADS // vector)
    step_in, step_out = (width, 1) if along_row else (1, width)
    if _up(inputs.numel, step_in) < min(height * 16, MOST_VALUES):
        return 0, 0  # each row of the block has an output of its own, and nothing is divided further
    step_in *= height
    values = _up(inputs.numel, step_in)
    groups, room = _up(outputs.numel // vector, step_out), processors * (threads // (width * height))
    if values < MOST_VALUES or groups > room:
        return 0, 0
    blocks = max(min(_up(room, groups), _up(values, LEAST_VALUES)), _up(values, MOST_VALUES))
    if blocks == 1:
        return 0, 0
    return itemsize * outputs.numel * blocks * (1 if along_row else width * vector), 4 * groups


def _merged(dimensions: list[tuple[int, int]]) -> Side:
    side = Side([], [])
    for stride, size in sorted(dimensions):
        if side.sizes and side.sizes[-1] * side.strides[-1] == stride:
            side.sizes[-1] *= size
        else:
            side.sizes.append(size)
            side.strides.append(stride)
    return side


def _vector(outputs: Side, inputs: Side) -> int:
    """How many outputs a thread has: as many as divide the row, and every other stride."""
    vector = VECTOR
    for number in (outputs.sizes[0], *outputs.strides[1:], *inputs.strides):
        while number % vector:
            vector //= 2
    return vector


def _block(width: int, height: int, most: int) -> tuple[int, int]:
    wide, high = _power(width, most), _power(height, most)
    height = min(high, most // min(wide, WARP))
    return min(wide, most // height), height


def _power(n: int, most: int) -> int:
    """The largest power of two within n, or ``most``."""
    return 1 << (n.bit_length() - 1) if 1 <= n < most else max(1, min(n, most))


def _up(n: int, by: int) -> int:
    return -(-n // by)
