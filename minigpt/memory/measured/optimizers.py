"""The plan's optimizer over a real model, from the library that has it, in transformers' Trainer's settings.

adamw, kahan_adamw, sgd             minigpt.optim (torch's AdamW unless weights need another), torch.optim.SGD
adamw8bit, paged_..., lion...       bitsandbytes.optim, as ``optim="paged_adamw_8bit"`` and the like ask for them
galore                              minigpt.optim, on the matrices that adapters would have
adafactor                           transformers.optimization.Adafactor, as ``optim="adafactor"`` asks for it
"""

from __future__ import annotations

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

from minigpt.memory.measured.adapters import target_weights
from minigpt.memory.plan import TrainingPlan
from minigpt.optim import GaLoreAdamW, InBackward, KahanAdamW, adamw

LR, GAP = 1e-4, 200


def make_optimizer(module: nn.Module, plan: TrainingPlan) -> torch.optim.Optimizer | InBackward:
    """The plan's optimizer over the parameters that take a gradient; with ``optimizer_in_backward`` one for each."""
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    projected = {id(weight) for weight in target_weights(module, plan)} if plan.optimizer == "galore" else set()
    if plan.optimizer_in_backward:
        if plan.accumulation > 1:
            raise ValueError(
                f"accumulation is {plan.accumulation}; with optimizer_in_backward every backward is a step: allowed: 1"
            )
        return InBackward(trained, lambda parameters: _make(parameters, plan, projected))
    return _make(trained, plan, projected)


def _make(trained: list[nn.Parameter], plan: TrainingPlan, projected: set[int]) -> torch.optim.Optimizer:
    loops = {"foreach": dict(foreach=True), "single": dict(foreach=False), "fused": dict(fused=True)}
    loop = loops[plan.optimizer_loop]
    kind = plan.optimizer
    if kind == "adamw":
        return adamw(trained, plan.precision, lr=LR, **loop)
    if kind == "galore":
        matrices = dict(params=[p for p in trained if id(p) in projected], rank=plan.rank)
        others = dict(params=[p for p in trained if id(p) not in projected])
        matrices["update_proj_gap"] = 1 if plan.step == "refresh" else GAP
        return GaLoreAdamW([group for group in (matrices, others) if group["params"]], lr=LR)
    if kind == "kahan_adamw":
        return KahanAdamW(trained, lr=LR)
    if kind in ("sgd", "sgd_momentum"):
        if loop.get("fused") and type(trained[0].data) is not torch.Tensor:
            loop = loops["foreach"]  # torch runs the fused one on real tensors; neither keeps anything
        return torch.optim.SGD(trained, lr=LR, momentum=0.9 if kind == "sgd_momentum" else 0.0, **loop)
    if kind == "adafactor":
        from transformers.optimization import Adafactor

        return Adafactor(trained, lr=LR, scale_parameter=False, relative_step=False)
    return _bitsandbytes(trained, kind)


def _bitsandbytes(trained: list[nn.Parameter], kind: str) -> torch.optim.Optimizer:
    from unittest import mock

    from bitsandbytes import functional, optim

    options = dict(lr=LR, optim_bits=8 if "8bit" in kind else 32, is_paged="paged" in kind)
    make = optim.Lion if "lion" in kind else optim.AdamW
    if type(trained[0].data) is torch.Tensor:
        return make(trained, **options)
    # The tables that 8-bit states are read with are computed from values; fake ones have their size.
    with mock.patch.object(functional, "create_dynamic_map", lambda *args, **options: torch.empty(256)):
        return make(trained, **options)


def resumed(
    module: nn.Module, optimizer: torch.optim.Optimizer | InBackward, plan: TrainingPlan
) -> torch.optim.Optimizer | InBackward:
    """A new optimizer that has loaded the old one's state, as a script that resumes does; the loaded file is let go.

    Raises ValueError for bitsandbytes' optimizers on fake tensors: they copy what they load, value by value.
    """
    new = make_optimizer(module, plan)
    real = all(type(parameter.data) is torch.Tensor for parameter in module.parameters())
    one = next(iter(new.optimizers.values())) if isinstance(new, InBackward) else new
    if not real and type(one).__module__.startswith("bitsandbytes"):
        raise ValueError("step is 'resumed'; bitsandbytes' optimizers load from real tensors only: allowed: cpu, cuda")
    copies: dict[int, torch.Tensor] = {}  # what is shared in a file is shared after it is read

    def copy(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in copies:
            copies[id(tensor)] = tensor.clone()
        return copies[id(tensor)]

    new.load_state_dict(tree_map_only(torch.Tensor, copy, optimizer.state_dict()))
    return new
