"""Bytes that a linear layer must move, beside its FLOPs: when memory's bandwidth decides, and what four bits cost.

A kernel reads its inputs from the card's memory once and writes its result once, at best. For N rows (tokens) of x,
(N, n_in), times a weight (n_out, n_in), with s bytes per number:

    kernel          bytes                                        FLOPs
    product         s (N n_in + n_in n_out + N n_out)            2 N n_in n_out
    dequantizing    s n_in n_out, and codes and scales           none counted
    fused           s (N n_in + N n_out), and codes and scales   2 N n_in n_out     the weight is never in memory

Codes and scales of NF4 are 1/2 + 4/64 bytes per weight. With double quantization 1/2 + 1/64 + 4/16384; but dequantizing
first makes the scales float32, adds their mean, and reads them: four times 4/64 more.

Then time is the longer of two (the roofline: Williams, Waterman and Patterson 2009), which are equal at the ridge:

    seconds = max(FLOPs / speed, bytes / bandwidth)              ridge = speed / bandwidth, in FLOPs per byte

A product of one row does about one FLOP per byte of a 16-bit weight: bandwidth decides, and fewer bytes are faster.
With many rows FLOPs decide, four bits save no time, and dequantizing comes on top: the same bytes for any batch.

bitsandbytes 0.50 (``MatMul4Bit``) dequantizes for the forward, and again for backward; checkpointing repeats the
forward. On CUDA the forward of few rows has a fused kernel: of 4 always, in a large weight of 512 at most.

Left out: caches, kernels that overlap, the time to launch one, and that neither speed is ever reached; adapters and
attention.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from minigpt.memory.families import Architecture
from minigpt.memory.gpus import GPUS, find_gpu
from minigpt.values import check_counts


@dataclass(frozen=True)
class Kernel:
    """What one kernel computes and moves."""

    flops: int
    nbytes: int

    @property
    def intensity(self) -> float:
        """FLOPs per byte."""
        return self.flops / self.nbytes


def product(rows: int, n_in: int, n_out: int, itemsize: int = 2) -> Kernel:
    """(rows, n_in) times (n_in, n_out), of numbers of ``itemsize`` bytes."""
    check_counts(rows=rows, n_in=n_in, n_out=n_out, itemsize=itemsize)
    return Kernel(2 * rows * n_in * n_out, itemsize * (rows * n_in + n_in * n_out + rows * n_out))


def dequantizing(n_in: int, n_out: int, itemsize: int = 2, double: bool = True) -> Kernel:
    """An NF4 weight made whole in ``itemsize`` bytes per number; ``double``: its scales are quantized too."""
    check_counts(n_in=n_in, n_out=n_out, itemsize=itemsize)
    return Kernel(0, itemsize * n_in * n_out + _codes(n_in * n_out) + _scales(n_in * n_out, double))


def fused(rows: int, n_in: int, n_out: int, itemsize: int = 2, double: bool = True) -> Kernel:
    """A product that reads the weight as it is stored, in four bits."""
    weight, numel = itemsize * n_in * n_out, n_in * n_out
    plain = product(rows, n_in, n_out, itemsize)
    return Kernel(plain.flops, plain.nbytes - weight + _codes(numel) + _stored_scales(numel, double))


def _codes(numel: int) -> int:
    return numel // 2


def _stored_scales(numel: int, double: bool) -> int:
    return numel // 64 + 4 * -(-numel // (64 * 256)) if double else 4 * (numel // 64)


def _scales(numel: int, double: bool) -> int:
    """Double: written as float32, read and written with their mean added, and read."""
    return _stored_scales(numel, double) + (4 * 4 * (numel // 64) if double else 0)


def trained(
    rows: int,
    n_in: int,
    n_out: int,
    itemsize: int = 2,
    four_bits: bool = False,
    double: bool = True,
    again: bool = False,
) -> list[Kernel]:
    """A frozen layer in a training step: the forward, its input's gradient, and with ``again`` a second forward."""
    whole = [dequantizing(n_in, n_out, itemsize, double)] if four_bits else []
    forward = [*whole, product(rows, n_in, n_out, itemsize)]
    return forward * (2 if again else 1) + [*whole, product(rows, n_out, n_in, itemsize)]


def matrices(model) -> list[tuple[int, int]]:
    """(n_in, n_out) of each matrix that a token is multiplied with: those of the blocks, and last the head."""
    architecture = Architecture.of(model)
    blocks = [(t.shape[1], t.shape[0]) for t in architecture.tensors() if t.kind == "linear"]
    return [*blocks, (architecture.n_embd, architecture.vocab_size)]


def seconds(kernels: Iterable[Kernel], card: str, itemsize: int = 2) -> float:
    """The kernels one after the other on ``card``, at its best speeds, in a 16-bit format that it has, or float32."""
    gpu, speed = GPUS[find_gpu(card)], _speed(card, itemsize)
    return sum(max(kernel.flops / speed, kernel.nbytes / gpu.bandwidth) for kernel in kernels)


def ridge(card: str, itemsize: int = 2) -> float:
    """FLOPs per byte above which FLOPs decide how long a kernel takes, and not bandwidth."""
    return _speed(card, itemsize) / GPUS[find_gpu(card)].bandwidth


def rows_to_ridge(n_in: int, n_out: int, card: str, itemsize: int = 2) -> float:
    """How many rows a product needs for FLOPs to decide; infinitely many where the matrix is too narrow."""
    check_counts(n_in=n_in, n_out=n_out, itemsize=itemsize)
    left = 2 / (itemsize * ridge(card, itemsize)) - (n_in + n_out) / (n_in * n_out)
    return 1 / left if left > 0 else float("inf")


def _speed(card: str, itemsize: int) -> float:
    gpu = GPUS[find_gpu(card)]
    return gpu.half if itemsize == 2 else gpu.single
