"""What is watched while an answer runs, beside what refuses: contexts that know no truth, by name.

NoKernels         no kernel of bitsandbytes answers
no_optimizers     no optimizer of torch is built, and none of its formulas answers
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from minigpt.checks.closing import refuse


class NoKernels(TorchDispatchMode):
    """Every kernel of bitsandbytes refuses, however it was reached."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "bitsandbytes":
            refuse("asks-bitsandbytes", "bitsandbytes")
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def no_optimizers() -> Iterator[None]:
    def none(*_, **__):
        refuse("asks-optimizer", "an optimizer")

    with (
        mock.patch.object(torch.optim.Optimizer, "__init__", none),
        mock.patch("torch.optim.adam.adam", none),
        mock.patch("torch.optim.adamw.adamw", none),
        mock.patch("torch._fused_adamw_", none),
    ):
        yield
