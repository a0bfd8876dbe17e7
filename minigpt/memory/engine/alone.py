"""Where a training of several ranks steps into a model's forward and backward; of one rank alone, nowhere.

Each is called where torch's own hooks are: FSDP and ZeRO gather weights before a block's forward and free them after
it, and again in backward, and DDP reduces a gradient when it is there (``predicted.sharded``).
"""

from __future__ import annotations

from collections.abc import Callable

from minigpt.memory.engine.graph import Value


class Alone:
    """One rank."""

    def forward_begins(self) -> None:
        """Before the whole model's forward."""

    def block_begins(self, i: int, inputs: tuple[Value, ...]) -> tuple[Value, ...]:
        """Before block ``i``; returns the inputs, whose backward may call back."""
        return inputs

    def block_ends(self, i: int, out: Value) -> Value:
        """After block ``i``; returns its output, whose backward may call back."""
        return out

    def forward_ends(self, out: Value) -> Value:
        """The whole model returns ``out``: its loss, or its logits if the loop makes the loss. Once for each pass."""
        return out

    def step_begins(self) -> None:
        """Before the optimizer's update."""

    def step_ends(self) -> None:
        """After it."""

    def backward_ends(self) -> None:
        """After all gradients of a pass are there."""


def hooked(value: Value, run: Callable[[], None]) -> Value:
    """``value``, with ``run()`` to be called when its gradient is there and before that goes on: torch's
    ``Tensor.register_hook``."""

    def backward(g):
        run()
        return [g]

    if value.source is None:
        return value
    same = Value(value.storage, value.shape, value.dtype, value.strides, base=value.base)
    return value.storage.tape.record("hook", (value,), same, (), backward)
