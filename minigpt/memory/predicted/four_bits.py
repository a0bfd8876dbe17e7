"""Whether bitsandbytes multiplies with 4-bit weights as they are, or makes the whole W first: on CUDA, few rows.

W's codes are decoded inside one kernel where that is faster than to write W and read it again: always for up to 4 rows,
never for more than 1,536, and between them as bitsandbytes' measurements of each generation say. ``tiles`` of 64
outputs are what a kernel's blocks work on; one ``wave`` is as many as the card has multiprocessors.

Source: bitsandbytes 0.50.2, backends/cuda/ops.py (_gemm_4bit_use_custom_cuda), which a test runs beside this.
"""

from __future__ import annotations

from collections.abc import Callable

Card = tuple[tuple[int, int], int]  # compute capability, multiprocessors
ALWAYS, NEVER, BLOCK = 4, 1536, 64
SMALL = 4 * 1024 * 1024  # weights


def fuses(card: Card, dtype: str, rows: int, n_out: int, n_in: int) -> bool:
    """Whether a product of ``rows`` with W (n_out, n_in), in ``dtype``, runs without the whole W."""
    if rows > NEVER or n_in % BLOCK:
        return False
    if rows <= ALWAYS:
        return True
    capability, processors = card
    if dtype == "float32" or capability < (7, 5) or (capability < (8, 0) and dtype != "float16"):
        return rows < 8
    tiles = -(-n_out // 64)
    if n_out * n_in < SMALL:
        return rows <= _small(capability, processors, tiles, n_out, n_in, rows)
    if rows > 512:
        return False
    if rows < 8:
        return not _loses_at_seven(capability, processors, tiles, n_out, n_in, rows)
    return rows <= GENERATIONS.get(capability, _ada)(processors, tiles, n_out, n_in)


def _small(capability: tuple[int, int], s: int, tiles: int, N: int, K: int, rows: int) -> int:
    """The most rows, for W of less than 4 Mi weights; ``s``: multiprocessors."""
    if K * 2 < N:
        if capability == (8, 0):
            return 1536 if tiles * 3 < s else 512
        if capability == (9, 0):
            return 512 if tiles * 3 < s else 320
        if capability == (7, 5):
            if tiles >= s * 3 or K < 704:
                return 320
            return 64 if K >= 1024 else 96
        return 192 if tiles < s and tiles * K > s * 320 else 320
    quarter = tiles * 4 <= s
    if capability == (8, 0) and quarter:
        return 384 if K < N else 32 if tiles * 8 <= s else 128
    if capability == (7, 5) and tiles < s and rows > 8:
        return 64
    if quarter:
        return 32 if K < N or capability in ((8, 0), (9, 0)) else 23
    return 16 if tiles * 2 <= s else 0


def _loses_at_seven(capability: tuple[int, int], s: int, tiles: int, N: int, K: int, rows: int) -> bool:
    """5 to 7 rows are fused, but for some shapes on an A100 or an H100 at 6 and 7."""
    if capability not in ((8, 0), (9, 0)) or rows < 6 or tiles < (36 if capability == (9, 0) else 48):
        return False
    below_75, below_60 = tiles * 4 < s * 3, tiles * 5 < s * 3
    if K == N:
        return below_60 if capability == (8, 0) else below_75 and not below_60
    return K > N and below_75


# ------------------------------------------------------------ the most rows, from 8 on


def _turing(s: int, tiles: int, N: int, K: int) -> int:
    if tiles >= s * 3:
        return 128 if K < N else 64
    return 64 if tiles >= s // 2 else 32


def _a100(s: int, tiles: int, N: int, K: int) -> int:
    if tiles >= s * 3:
        return 128
    if tiles >= s:
        return 64 if K < N else 32
    if (K >= N * 3 and tiles * 4 > s) or (K == N and tiles >= 48 and tiles * 5 < s * 3):
        return 0
    if tiles * 2 < s and K <= N:
        return 128
    if tiles * 2 < s and tiles * 3 >= s:
        return 0
    return 128 if tiles >= s // 2 and K < N else 16


def _ampere(s: int, tiles: int, N: int, K: int) -> int:
    return 128 if tiles >= s else 64 if tiles >= s // 2 else 16


def _hopper(s: int, tiles: int, N: int, K: int) -> int:
    for waves, most in ((3, 64), (2, 48), (1, 32)):
        if tiles >= s * waves:
            return most
    if tiles < s // 2 or (K >= N and tiles * 4 < s * 3):
        return 0
    return 16


def _blackwell(s: int, tiles: int, N: int, K: int) -> int:
    """A GeForce's."""
    if tiles >= s * 2:
        return 256 if tiles >= s * 3 else 128
    if tiles * 5 >= s * 4:
        return 96 if K >= N else 64
    if tiles >= s // 2:
        return 64 if K * 2 >= N and tiles >= 128 else 8
    return 16 if K > N * 2 and tiles > 64 else 8


def _ada(s: int, tiles: int, N: int, K: int) -> int:
    tall = K > N * 2
    if tiles >= s * 2:
        return 256 if tiles >= s * 3 else 128
    if tiles * 5 >= s * 4:
        if tall or tiles >= 200:
            return 128
        return 64 if K < N else 128 if s >= 60 else 32
    if tiles >= s // 2:
        return 64 if tall else 8 if tiles >= 64 else 32
    if K > N and tiles <= 48:
        return 12 if K >= N * 3 else 10
    return 16 if tall or tiles < 48 else 8


GENERATIONS: dict[tuple[int, int], Callable[[int, int, int, int], int]] = {
    (7, 5): _turing, (8, 0): _a100, (8, 6): _ampere, (9, 0): _hopper, (12, 0): _blackwell
}  # fmt: skip
