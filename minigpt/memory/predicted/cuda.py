"""What only CUDA's kernels ask the allocator for, beside their results: ``engine.kernels`` answered for a card.

    product     each thread that multiplies gets a workspace for its cuBLAS handle at its first product, for good: one
                for forward, one for autograd's thread; and a factor that lies neither in rows nor in columns, such as a
                gradient that is one number seen many times, is copied for it
    reduction   a buffer and semaphores, where several blocks of threads share an output (``predicted.reduce``)
    index_put   the numbers of the rows, made positive, then as places; sorted, with a count beside; and the sort's own
    embedding   beyond 3,072 rows: the same sort, by all 64 bits; then where each token's rows begin, and parts of ten
    attention   ``predicted.fused``; one by one, a look for rows that are all masked
    LayerNorm   beyond 65,536 rows of few columns: parts of the sums for weight and bias
    4 bits      W made whole, in the product's precision, unless the rows are few (``predicted.four_bits``)

Sources: aten/src/ATen/cuda/CublasHandlePool.cpp; ATen/native/cuda/Reduce.cuh; Indexing.cu (index_put_with_sort_kernel);
Embedding.cu; EmbeddingBackwardKernel.cu; layer_norm_kernel.cu; ATen/cuda/cub-RadixSortPairs.cuh; and CUB's
dispatch_radix_sort.cuh, of CUDA 12.

Versions differ: some let cuBLASLt use cuBLAS's workspace (TORCH_CUBLASLT_UNIFIED_WORKSPACE), and the newest keep none
from call to call (TORCH_CUBLAS_WORKSPACE_CACHE). What is here is what torch 2.6 to 2.11 recorded (cuBLASLt: 2.9).

Left out: the tile states of CUB's scans in embedding's backward, some KiB; cuDNN's workspace; dropout's state outside
attention.
"""

from __future__ import annotations

from minigpt.memory.engine.fused import Fused
from minigpt.memory.engine.kernels import Kernels
from minigpt.memory.engine.tape import Tape, Value
from minigpt.memory.predicted import four_bits, fused, reduce

FLOAT = 4  # bytes
LT_WORKSPACE = 1024 * 1024  # bytes: CUBLASLT_WORKSPACE_SIZE's default
FEW_PICKS, SUMMED, ALL_BITS = 3072, 10, 2**64 - 1  # rows that are not sorted; rows in a part; of a number of 8 bytes
MANY_ROWS, WARP = 64 * 1024, 32
DIGITS = 256  # of a radix sort that takes 8 bits at a time
SINGLE_TILE, TILE = 256 * 9, 384 * 10  # pairs of 8 bytes that one block sorts: alone, and as one of many
ALIGN = 256


class CudaKernels(Kernels):
    """A card's. ``workspace``: bytes for each cuBLAS handle; ``processors``: multiprocessors, of ``threads`` each."""

    def __init__(
        self, workspace: int, processors: int, threads: int = 2048, capability: tuple[int, int] = (8, 0)
    ) -> None:
        self.workspace, self.processors, self.threads, self.capability = workspace, processors, threads, capability
        self.handles: dict[tuple[bool, bool], Value] = {}  # by whether it is autograd's thread, and cuBLASLt's

    def begin(self, tape: Tape) -> None:
        """An earlier step has been: backward's workspace is there. Forward's come early, with its first products."""
        self._handle(tape, (True, False))

    def product(self, tape: Tape, *factors: Value, biased: bool = False) -> None:
        copies = [tape.new(x.shape, x.dtype) for x in factors if not _multiplies(x)]
        handle = tape.phase == "backward", biased
        if handle not in self.handles:
            self._handle(tape, handle)
        del copies

    def _handle(self, tape: Tape, handle: tuple[bool, bool]) -> None:
        biased = handle[1]
        doing, tape.doing = tape.doing, "cuBLASLt workspace" if biased else "cuBLAS workspace"
        self.handles[handle] = tape.new((LT_WORKSPACE if biased else self.workspace,), "uint8")
        tape.doing = doing

    def reduction(self, x: Value, kept: tuple[int, ...], itemsize: int | None = None) -> None:
        sizes = reduce.scratch(x.shape, x.strides, kept, itemsize or FLOAT, self.processors, self.threads)
        if sizes[0]:
            made = [x.storage.tape.new((nbytes,), "uint8") for nbytes in sizes]
            del made[1], made

    def index_put(self, tape: Tape, picks: int, rows: int) -> None:
        positive = tape.new((picks,), "int64")
        places = tape.new((picks,), "int64")
        del positive
        kept = [tape.new((picks,), "int64") for _ in range(3)]  # sorted, where from, and their count
        tape.new((sort_bytes(picks, rows - 1),), "uint8")
        del kept, places

    def embedding(self, tape: Tape, picks: int, shape: tuple[int, ...], dtype: str) -> Value:
        """Up to 3,072 rows are added as they come. More are sorted, and summed ten of a token at a time, in float32."""
        if picks <= FEW_PICKS:
            return tape.new(shape, dtype)
        ordered, places, count = (tape.new((picks,), "int64") for _ in range(3))
        tape.new((sort_bytes(picks, ALL_BITS),), "uint8")
        del count
        gradient = tape.new(shape, dtype)
        tokens = min(picks, shape[0])
        partial = picks // SUMMED + tokens
        kept = [tape.new(size, "int64") for size in ((picks,), (), (tokens,), (tokens,), (), (partial,))]
        tape.new((partial, shape[1]), "float32")
        del kept, ordered, places
        return gradient

    def layer_norm(self, tape: Tape, gradients: list[Value | None], rows: int) -> list[Value | None]:
        """Where there are very many rows, and columns too few for all multiprocessors, parts of the rows are summed
        first, and then the parts, into new gradients."""
        columns = next(value.shape[-1] for value in gradients if value is not None)
        if rows <= MANY_ROWS or columns // WARP >= self.processors // 2:
            return gradients
        parts = min(MANY_ROWS // 2 // -(-columns // WARP), -(-rows // WARP))
        summed = [value and tape.new((parts, columns), value.dtype) for value in gradients[1:]]
        for i, value in enumerate(summed, 1):
            if value is not None:
                gradients[i] = self._total(value)
        return gradients

    def _total(self, x: Value) -> Value:
        """x.sum(0)"""
        total = x.storage.tape.new(x.shape[1:], x.dtype)
        self.reduction(x, (1,))
        return total

    def decodes(self, dtype: str, rows: int, n_out: int, n_in: int) -> bool:
        return not four_bits.fuses((self.capability, self.processors), dtype, rows, n_out, n_in)

    def masked_rows(self, scores: Value) -> None:
        tape = scores.storage.tape
        masked = tape.new(scores.shape, "bool")
        rows = tape.new((*scores.shape[:-1], 1), "bool")
        zero = tape.new((), scores.dtype)
        del masked, rows, zero

    def fused(self, q: Value, k: Value, v: Value, masked: bool, dropout: float, grouped: bool) -> Fused | None:
        return fused.chosen((self.capability, self.processors), q, k, v, masked, dropout, grouped)


def _multiplies(x: Value) -> bool:
    """Whether cuBLAS can read x (..., n, m) as it lies: one of the last two dimensions without a gap, the other not
    over itself. Source: prepare_batch_matrix_for_cublas, ATen/native/cuda/Blas.cpp."""
    if x.strides is None:
        return True
    (n, m), (down, along) = x.shape[-2:], x.strides[-2:]
    return (along == 1 and down >= max(1, m)) or (down == 1 and along >= max(1, n))


def sort_bytes(pairs: int, largest: int) -> int:
    """What CUB's radix sort of (key, value) pairs of 8 bytes each asks for; ``largest``: the largest key.

    A block alone needs nothing, and asks for 1 byte. Else: how often each digit occurs, in every pass; what each block
    looks back at; a second copy of keys and values; a counter for each pass; each aligned, and the whole once more.
    """
    if pairs <= SINGLE_TILE:
        return 1
    passes = -(-max(largest, 1).bit_length() // 8)
    blocks = -(-pairs // TILE)
    copies = [8 * pairs] * 2 if passes > 1 else []
    parts = [passes * DIGITS * 8, blocks * DIGITS * 4, *copies, passes * 4]
    return sum(-(-part // ALIGN) * ALIGN for part in parts) + ALIGN - 1
