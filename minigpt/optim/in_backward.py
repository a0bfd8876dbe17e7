"""An optimizer for each parameter, which runs in backward: no two gradients have to be there at once.

autograd calls a hook when a parameter's gradient is complete (``register_post_accumulate_grad_hook``). There the update
is made and the gradient let go, so that instead of all gradients only one or two are alive. What it costs: nothing that
needs all gradients goes together with it: not clipping by their norm, not accumulation, not a loss scaler.

It goes with any optimizer: ``InBackward(model.parameters(), lambda p: AdamW8bit(p, lr=1e-4))``.

Source: torch's tutorial "How to save memory by fusing the optimizer step into the backward pass"; LOMO, Lv et al. 2023,
arXiv 2306.09782; GaLore calls it per-layer weight updates, torchtune ``optimizer_in_bwd``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer


class InBackward:
    """``make([parameter])`` makes each parameter's optimizer. The hooks live from ``attach`` to ``detach``.

    Frozen parameters get none. It stands where an optimizer does: ``step`` does nothing, as all is done already.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], make: Callable[[list[nn.Parameter]], Optimizer]) -> None:
        self.optimizers = {p: make([p]) for p in parameters if p.requires_grad}
        self._hooks: list = []

    @property
    def state(self) -> dict[Tensor, dict[str, Any]]:
        return {p: state for optimizer in self.optimizers.values() for p, state in optimizer.state.items()}

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """All optimizers' groups, so that a schedule can set their learning rates."""
        return [group for optimizer in self.optimizers.values() for group in optimizer.param_groups]

    def attach(self) -> None:
        self._hooks = [p.register_post_accumulate_grad_hook(self._update) for p in self.optimizers]

    def detach(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def _update(self, parameter: Tensor) -> None:
        self.optimizers[parameter].step()  # type: ignore[index]
        self.optimizers[parameter].zero_grad()  # type: ignore[index]

    def step(self) -> None:
        """Done already."""

    def zero_grad(self, set_to_none: bool = True) -> None:
        for optimizer in self.optimizers.values():
            optimizer.zero_grad(set_to_none)

    def state_dict(self) -> list[dict]:
        return [optimizer.state_dict() for optimizer in self.optimizers.values()]

    def load_state_dict(self, state: list[dict]) -> None:
        for optimizer, part in zip(self.optimizers.values(), state, strict=True):
            optimizer.load_state_dict(part)
