"""The loop that all optimizers of this room have: one parameter after the other.

What one parameter's update makes on the way dies before the next one's begins, so that the most that a step makes is
what its largest tensor needs. (torch's "foreach" loops over all tensors in one kernel, and holds all of it at once.)

Left out: sparse and complex gradients, ``maximize``, learning rates that are tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from minigpt.values import is_number

NOT_NEGATIVE = ("lr", "eps", "weight_decay")


def check_options(options: dict[str, Any]) -> None:
    """Raise ValueError, with the name, for a hyperparameter that no optimizer can have.

    "lr", "eps" and "weight_decay" are finite numbers of at least 0, "betas" two numbers of at least 0 and below 1.
    """
    for name in NOT_NEGATIVE:
        if name in options and not (is_number(options[name]) and 0 <= options[name] < math.inf):
            raise ValueError(f"{name} is {options[name]!r}; it must be a number of at least 0")
    betas = options.get("betas", (0, 0))
    pair = isinstance(betas, (tuple, list)) and len(betas) == 2
    if not pair or not all(is_number(beta) and 0 <= beta < 1 for beta in betas):
        raise ValueError(f"betas is {betas!r}; it must be two numbers of at least 0 and below 1")


class OneByOne(torch.optim.Optimizer):
    """An optimizer that updates one parameter after the other. A subclass writes ``_update``.

    ``options`` are the defaults of what a group of parameters can have of its own. State keeps its dtypes when it is
    saved and loaded. Raises ValueError as ``check_options`` does.
    """

    def __init__(self, params: Iterable, **options) -> None:
        super().__init__(params, options)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As torch's, which its constructor calls too; the group's options are checked first."""
        self._check({**self.defaults, **param_group})
        super().add_param_group(param_group)

    def _check(self, options: dict[str, Any]) -> None:
        check_options(options)

    def parameters(self) -> Iterable[Tensor]:
        """Every parameter of every group."""
        return (p for group in self.param_groups for p in group["params"])

    @torch.no_grad()
    def step(self, closure: Callable | None = None):
        """Update every parameter that has a gradient; ``closure`` makes them first, and its loss is returned."""
        loss = None
        if closure is not None:  # it runs forward and backward
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self._update(p, p.grad, self.state[p], group)
        return loss

    def _update(self, p: Tensor, grad: Tensor, state: dict, group: dict) -> None:
        """One parameter's step, in a function of its own so that its tensors die with it."""
        raise NotImplementedError

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict) -> None:
        """As torch's, which would cast state to the weight's dtype: so it gets the groups alone, and tensors are copied
        as they were saved."""
        super().load_state_dict({**state_dict, "state": {}})
        for i, p in enumerate(self.parameters()):
            for name, value in state_dict["state"].get(i, {}).items():
                self.state[p][name] = value.to(p.device, copy=True) if isinstance(value, Tensor) else value
