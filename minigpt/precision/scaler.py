"""Loss scaling, written out: multiply the loss, and so every gradient, by a power of two, and divide before the step.

    loss * s            backward runs on it, so what float16 holds on the way is s times larger, and less of it is zero
    gradient / s        in float32, where nothing is lost by it
    a gradient is infinite or NaN: s was too large.  No step; s = s * backoff
    ``interval`` steps went well:                    s = s * growth

Source: Micikevicius et al. 2018, arXiv 1710.03740; the rule that moves s is that of ``torch.amp.GradScaler``, which
this equals step by step (tests/test_precision_scaler.py).

Left out: several optimizers under one scale, several devices, saving and loading.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from minigpt.values import check_counts, is_number


class LossScaler:
    """``scale`` moves by itself; ``skipped`` counts the steps that were not made.

    Raises ValueError unless ``scale`` is positive and finite, ``growth`` above 1, ``backoff`` between 0 and 1 and
    ``interval`` a count.
    """

    def __init__(self, scale: float = 2.0**16, growth: float = 2.0, backoff: float = 0.5, interval: int = 2000) -> None:
        for name, value, least, most in (
            ("scale", scale, 0, math.inf), ("growth", growth, 1, math.inf), ("backoff", backoff, 0, 1),
        ):  # fmt: skip
            if not is_number(value) or not least < value < most:
                raise ValueError(f"{name} is {value!r}; it must be above {least} and below {most}")
        check_counts(interval=interval)
        self.scale, self.growth, self.backoff, self.interval = float(scale), growth, backoff, interval
        self.well, self.skipped = 0, 0  # steps since the scale moved; steps not made

    def scaled(self, loss: Tensor) -> Tensor:
        """The loss to call backward on."""
        return loss * self.scale

    def step(self, optimizer: torch.optim.Optimizer) -> bool:
        """Divide the gradients by the scale, and step if all of them are finite; then move the scale.

        Returns whether the step was made. Raises ValueError for float16 gradients: divided, they would vanish after
        all, so the weights must be float32.
        """
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        if any(gradient.dtype == torch.float16 for gradient in gradients):
            raise ValueError("a gradient is float16; the weights that a scaler's optimizer updates must be float32")
        for gradient in gradients:
            gradient.mul_(1 / self.scale)
        finite = all(bool(gradient.isfinite().all()) for gradient in gradients)
        if finite:
            optimizer.step()
        self._move(finite)
        return finite

    def _move(self, finite: bool) -> None:
        if not finite:
            self.scale, self.well, self.skipped = self.scale * self.backoff, 0, self.skipped + 1
            return
        self.well += 1
        if self.well == self.interval:
            self.scale, self.well = self.scale * self.growth, 0
