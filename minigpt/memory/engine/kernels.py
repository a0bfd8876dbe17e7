"""What a kernel asks memory for beside its result: the words in which an operation says what it runs.

An operation of the tape names its kernel in the moment at which the real one would ask: with its result there, and
before anything of its inputs is let go. On a CPU nothing comes of it; ``predicted.cuda`` has CUDA's answers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from minigpt.memory.engine.fused import Fused

if TYPE_CHECKING:
    from minigpt.memory.engine.graph import Value
    from minigpt.memory.engine.tape import Tape


class Kernels:
    """A CPU's: nothing."""

    def product(self, tape: Tape, *factors: Value, biased: bool = False) -> None:
        """A product of matrices, whose result is there; ``factors`` of which it is not known that they lie in rows.

        ``biased``: a bias, one number for each column, is added in the same kernel.
        """

    def reduction(self, x: Value, kept: tuple[int, ...], itemsize: int | None = None) -> None:
        """``x`` reduced to the dimensions ``kept``, all others to one; a running value takes ``itemsize`` bytes, or as
        many as float32 has."""

    def index_put(self, tape: Tape, picks: int, rows: int) -> None:
        """``picks`` rows of a gradient added into a table of ``rows``, by index_put_ with accumulate."""

    def embedding(self, tape: Tape, picks: int, shape: tuple[int, ...], dtype: str) -> Value:
        """The gradient of an embedding's table of this ``shape``, from ``picks`` rows."""
        return tape.new(shape, dtype)

    def layer_norm(self, tape: Tape, gradients: list[Value | None], rows: int) -> list[Value | None]:
        """The gradients of a LayerNorm's input (so many rows), weight and bias, if wanted, as they are in the end."""
        return gradients

    def decodes(self, dtype: str, rows: int, n_out: int, n_in: int) -> bool:
        """Whether bitsandbytes makes the whole of a 4-bit W (n_out, n_in) to multiply so many rows with it, forward."""
        return False

    def masked_rows(self, scores: Value) -> None:
        """``scores`` looked through for rows that are all masked: what _safe_softmax does after the softmax."""

    def fused(self, q: Value, k: Value, v: Value, masked: bool, dropout: float, grouped: bool) -> Fused | None:
        """The fused attention that torch takes, or None: then the operations run one by one.

        A CPU's takes no dropout, no values of another width than keys, and fewer key heads only as groups.
        """
        heads = q.shape[1] == k.shape[1] or grouped
        return Fused() if heads and not dropout and v.shape[-1] == k.shape[-1] else None
