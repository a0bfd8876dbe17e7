"""A programme on the tape: what ran on a GPU while it was recorded, from configuration alone."""

from __future__ import annotations

from collections.abc import Callable

from minigpt.memory.engine.kernels import Kernels
from minigpt.memory.engine.tape import Tape


class Programme:
    """``began``: the event of the tape with which recording began."""

    def __init__(self, kernels: Kernels) -> None:
        self.tape = Tape(cuda=True)
        self.tape.kernels = kernels
        self.began = 0

    def warm(self, step: Callable[[], None], warm_ups: int = 5, emptied: bool = False) -> None:
        """Steps that nobody recorded, and one that was; ``emptied``: right after empty_cache."""
        for _ in range(warm_ups):
            step()
        self.began = len(self.tape.events)
        self.tape.emptied += [self.began] if emptied else []
        step()
