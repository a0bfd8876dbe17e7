"""What a kernel asks memory for beside its result: the words in which an operation says what it runs.

An operation of the tape names its kernel in the moment at which the real one would ask: with its result there, and
before anything of its inputs is let go. On a CPU nothing comes of it; ``predicted.cuda`` has CUDA's answers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

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
