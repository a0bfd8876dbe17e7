"""CUDA's fused attentions: which of them torch takes, and what each asks the allocator for.

    cuDNN       compute capability 9.0 and 10.0: 16 bits, heads up to 128 wide
    flash       from 8.0 on: 16 bits, no mask, keys as wide as values, heads up to 256 wide
    efficient   as many key heads as query heads; float32 and float16, from 8.0 on bfloat16
    none        the operations one by one: grouped heads in float32, or on a T4, for example; and a T4's bfloat16

    flash       forward: a log-sum-exp (B, H, T), 2 and 1 numbers of 8 bytes for dropout's state, kept without dropout,
                too; parts of the output, where few sequences and heads leave processors idle. Backward: gradients as
                their inputs lie; (B, H, T') and the queries' gradient (B, T', H, D') in float32, T' the next multiple
                of 128 and D' of 32 (64 from 129 on); the gradients of grouped keys and values for every query head
    efficient   forward: a log-sum-exp (B, H, T''), T'' a multiple of 32; the output in float32 for heads above 128.
                Backward: gradients; (B, H, T); the queries' gradient in float32 by tiles of I x J, each with 16 bytes
                of state, and where keys' and values' do not fit in registers, those of as many parts as there are

Sources, of torch 2.13: aten/src/ATen/native/transformers/cuda/sdp_utils.cpp, attention.cu, attention_backward.cu,
flash_attn/flash_api.cpp, and mem_eff_attention/kernel_backward.h and kernels/cutlassB.h, which every wheel has. Which
tile fits in a card's shared memory was asked of these headers, compiled with CUTLASS 4.2.

Left out: cuDNN's own workspace, which no source tells.
"""

from __future__ import annotations

from typing import NamedTuple

from minigpt.memory.engine import layout
from minigpt.memory.engine.fused import Fused, Place, as_queries, heads_last
from minigpt.memory.engine.graph import Storage, Value
from minigpt.memory.engine.tape import Tape

FLOAT, HALF = "float32", ("float16", "bfloat16")
STATE = 4  # float32 numbers' worth of a tile's lock and counter
MOST_SPLITS = 128


def chosen(
    card: tuple[tuple[int, int], int], q: Value, k: Value, v: Value, masked: bool, dropout: float, grouped: bool
) -> Fused | None:
    """What torch takes on a ``card`` (its capability, its multiprocessors), in torch's order; None: one by one."""
    capability, processors = card
    D, E, half = q.shape[-1], v.shape[-1], q.dtype in HALF
    groups = q.shape[1] != k.shape[1]
    if groups and not grouped:
        return None
    recorded = not q.storage.tape.records_nothing and any(x.source is not None for x in (q, k, v))
    if capability >= (8, 0) and half:
        narrow = max(D, E) <= 128 or (D, E) == (192, 128)
        if capability in ((9, 0), (10, 0)) and narrow and D % 8 == E % 8 == 0 and dropout * 16 % 1 == 0:
            return CuDNN(recorded)
        trains = D <= 192 or (D > 224 and not dropout) or not recorded or capability in ((8, 0), (9, 0), (10, 0))
        if not masked and D == E and D <= 256 and trains:
            return Flash(processors, dropout > 0)
    known = q.dtype != "bfloat16" or capability >= (8, 0)
    aligned = all(width % alignment(capability, half) == 0 for width in (D, E))
    return Efficient(capability, recorded, dropout > 0) if known and aligned and not groups else None


def alignment(capability: tuple[int, int], half: bool) -> int:
    """What the width of a head must be a multiple of, for the efficient kernel."""
    if half:
        return 8
    return 4 if capability >= (8, 0) else 1


def up(n: int, by: int) -> int:
    """The next multiple."""
    return -(-n // by) * by


def across(g: Value) -> Value:
    """A gradient (B, H, T, E) that lies as (B, T, H, E): itself, or a copy."""
    straight = layout.transpose(g.shape, g.strides, 1, 2)[1] is None
    return g if straight else g.storage.tape.new(g.shape, g.dtype, heads_last(g.shape))


def as_it_lies(tape: Tape, place: Place) -> Value:
    """empty_like: in the order of the dimensions in memory, without gaps."""
    shape, strides, dtype = place
    return tape.new(shape, dtype, layout.elementwise(((shape, strides),))[1])


class CuDNN(Fused):
    """The output as q lies, and a log-sum-exp if there will be a backward; gradients as their inputs lie."""

    def __init__(self, recorded: bool) -> None:
        self.recorded = recorded

    def forward(self, q: Value, k: Value, v: Value) -> tuple[Value, list[Storage]]:
        tape, (B, H, T, _) = q.storage.tape, q.shape
        out = tape.made("attention", as_queries(q, v.shape[-1]))
        if not self.recorded:
            return out, [out.storage]
        logsumexp = tape.made("attention", ((B, H, T, 1), FLOAT, None))
        return out, [logsumexp.storage, out.storage]

    def backward(self, tape: Tape, g: Value, q: Place, k: Place, v: Place) -> list[Value]:
        return [as_it_lies(tape, place) for place in (q, k, v)]


class Flash(Fused):
    """FlashAttention 2."""

    align = 8

    def __init__(self, processors: int, drops: bool) -> None:
        self.processors, self.drops = processors, drops

    def forward(self, q: Value, k: Value, v: Value) -> tuple[Value, list[Storage]]:
        tape, (B, H, T, D) = q.storage.tape, q.shape
        out = tape.made("attention", as_queries(q, D))
        logsumexp = tape.made("attention", ((B, H, T), FLOAT, None))
        parts = 1 if self.drops or tape.remembers else splits(B * H * -(-T // 64), self.processors, k.shape[2], D)
        sizes = [(parts, B, H, T), (parts, B, H, T, rounded(D))] if parts > 1 else []
        scratch = [tape.new(size, FLOAT) for size in sizes]
        state = tape.made("attention", ((2,), "int64", None))
        unused = tape.made("attention", ((), "int64", None))
        if self.drops:
            state = tape.made("attention", ((2,), "int64", None))
        del scratch
        return out, [x.storage for x in (out, logsumexp, state, unused)]

    def backward(self, tape: Tape, g: Value, q: Place, k: Place, v: Place) -> list[Value]:
        (B, H, T, D), (_, K, S, _) = q[0], k[0]
        contiguous = across(g)
        straight = layout.transpose(*layout.elementwise((q[:2],)), 1, 2)[1] is None
        output = None if straight else tape.new(q[0], q[2])
        made = [as_it_lies(tape, place) for place in (q, k, v)]
        rows = up(T, 128)
        scratch = [tape.new((B, H, rows), FLOAT), tape.new((B, rows, H, rounded(D)), FLOAT)]
        if K != H:
            scratch += [tape.new((B, S, H, D), q[2]) for _ in range(2)]
        del scratch, contiguous, output
        return made


def rounded(width: int) -> int:
    return up(width, 32 if width <= 128 else 64)


def splits(blocks: int, processors: int, keys: int, width: int) -> int:
    """Into how many parts flash divides the keys: as few as keep 85% of the best occupancy (num_splits_heuristic)."""
    slots = 2 * processors
    if blocks >= 0.8 * slots:
        return 1
    columns = -(-keys // (256 if width <= 64 else 128 if width <= 128 else 64))
    counts = range(1, min(MOST_SPLITS, slots, columns) + 1)
    eligible = [n for n in counts if n == 1 or -(-columns // n) != -(-columns // (n - 1))]
    full = {n: blocks * n / slots / -(-blocks * n // slots) for n in eligible}
    return next(n for n in eligible if full[n] >= 0.85 * max(full.values()))


class Tile(NamedTuple):
    """Rows and columns of scores that the efficient backward has at a time; whether keys' and values' gradients are
    in registers."""

    rows: int
    columns: int
    registers: bool = True


def tile(capability: tuple[int, int], half: bool, width: int, drops: bool = False) -> Tile:
    """The first kernel of cutlassB.h that takes heads of this ``width``, and whose tile fits in shared memory."""
    roomy = capability in ((8, 0), (9, 0), (10, 0))  # a block may have 163 KiB or more; elsewhere 99
    if not half:
        return Tile(128, 64) if width > 64 and roomy else Tile(64, 64)
    if width <= 64:
        return Tile(64, 64)
    if width > 128:
        return Tile(128, 64, False)
    if capability < (8, 0):
        return Tile(128, 64)
    if width <= 96 and capability in ((8, 6), (8, 9)) and not drops:
        return Tile(128, 64)
    return Tile(128, 128) if roomy else Tile(64, 64, False)


class Efficient(Fused):
    """The memory-efficient attention of xFormers: its output lies as (B, T, H, E)."""

    mask_align = 8

    def __init__(self, capability: tuple[int, int], recorded: bool, drops: bool) -> None:
        self.capability, self.recorded, self.drops = capability, recorded, drops

    def forward(self, q: Value, k: Value, v: Value) -> tuple[Value, list[Storage]]:
        tape, (B, H, T, D), width = q.storage.tape, q.shape, v.shape[-1]
        shape = B, H, T, width
        out = tape.made("attention", (shape, q.dtype, heads_last(shape)))
        logsumexp = tape.made("attention", ((B, H, up(T, 32) if self.recorded else 0), FLOAT, None))
        if max(D, width) > 128 and q.dtype in HALF and not tape.remembers:
            tape.new(shape, FLOAT)
        return out, [out.storage, logsumexp.storage]

    def backward(self, tape: Tape, g: Value, q: Place, k: Place, v: Place) -> list[Value]:
        (B, H, T, D), (_, _, S, E), half = q[0], v[0], q[2] in HALF
        contiguous = across(g)
        made = [tape.new(shape, dtype, heads_last(shape)) for shape, _, dtype in (q, k, v)]
        if half:
            delta = tape.new((B, H, T), FLOAT)
        else:  # the gradient times the output, summed, and turned
            product = tape.new((B, T, H, E), FLOAT)
            total = tape.new((B, T, H), FLOAT)
            delta = tape.new((B, H, T), FLOAT)
            del product, total
        tiles = tile(self.capability, half, max(D, E), self.drops)
        workspace = tape.new((workspace_bytes(tiles, B * H, T, S, D, E),), "uint8")
        del workspace, delta, contiguous
        return made


def workspace_bytes(tile: Tile, heads: int, rows: int, keys: int, width: int, v_width: int) -> int:
    """What the efficient backward adds gradients up in; ``heads``: those of all sequences."""
    I, J, registers = tile  # noqa: E741  as in the source
    numbers = -(-rows // I) * -(-width // J) * (I * J + STATE)
    if not registers:
        parts = 1 if heads >= 256 and keys <= 2 * J else min(-(-keys // J), 200 // heads)
        numbers += max(parts, 1) * J * (up(width, I) + up(v_width, I))
    return heads * up(numbers, 4) * 4
