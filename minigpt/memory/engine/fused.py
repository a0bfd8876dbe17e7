"""A fused attention: one kernel for scores, softmax and values, so that no score is a tensor. Here a CPU's.

What it makes and keeps differs from kernel to kernel; CUDA's are in ``predicted.fused``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from minigpt.memory.engine import layout

if TYPE_CHECKING:
    from minigpt.memory.engine.graph import Storage, Value
    from minigpt.memory.engine.tape import Tape

Place = tuple[layout.Shape, layout.Strides, str]  # a tensor's shape, strides and dtype


class Fused:
    """A CPU's: a log-sum-exp for each row, then the output, which lies as q does.

    ``align``: heads and rows of a mask are padded to a multiple of so many numbers.
    """

    align = mask_align = 1

    def forward(self, q: Value, k: Value, v: Value) -> tuple[Value, list[Storage]]:
        """The output, (B, H, T, E), and what is saved of what the kernel has made, the output among it."""
        tape, (B, H, T, _) = q.storage.tape, q.shape
        logsumexp = tape.made("attention", ((B, T, H), "float32", None))
        out = tape.made("attention", as_queries(q, v.shape[-1]))
        return out, [logsumexp.storage, out.storage]

    def backward(self, tape: Tape, g: Value, q: Place, k: Place, v: Place) -> list[Value]:
        """All three gradients, wanted or not."""
        return [tape.new(shape, dtype, heads_last(shape)) for shape, _, dtype in (q, k, v)]


def heads_last(shape: layout.Shape) -> layout.Strides:
    """The strides of (B, H, T, D) in memory as (B, T, H, D)."""
    B, H, T, D = shape
    return layout.transpose((B, T, H, D), None, 1, 2)[1]


def as_queries(q: Value, width: int) -> tuple:
    """What ``Tape.made`` makes an output (B, H, T, width) from that lies as q does."""
    shape, strides = layout.elementwise((((*q.shape[:-1], width), q.strides),))
    return shape, q.dtype, strides
