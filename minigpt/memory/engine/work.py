"""How much arithmetic a step does, counted beside its bytes: the products of matrices, in FLOPs.

A product (n, k) @ (k, m) is 2 n k m FLOPs: a multiplication and an addition for each of n k m pairs. The fused kernel
of attention makes two products of T x T forward, and five backward: it keeps no scores and makes them again.

Left out: all that is not a product, and the optimizer's step.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod


@dataclass
class Work:
    """FLOPs so far: of the forward pass, of what a checkpoint runs again in backward, and of gradients.

    ``decoded``: how many weights of few bits were made whole, each time that they were. ``moved``: bytes of blocks'
    inputs that went to the CPU's memory; each comes back once.
    """

    forward: int = 0
    again: int = 0
    backward: int = 0
    decoded: int = 0
    moved: int = 0

    def product(self, phase: str, *sizes: int) -> None:
        """One of these ``sizes`` that the model's forward makes: in backward it is made again."""
        if phase == "backward":
            self.again += 2 * prod(sizes)
        else:
            self.forward += 2 * prod(sizes)

    def gradients(self, *sizes: int) -> None:
        """One of backward's own."""
        self.backward += 2 * prod(sizes)
