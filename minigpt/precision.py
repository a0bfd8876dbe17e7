"""Training in 16 bits: casts on the fly, and 16-bit weights with a float32 master copy.

Two ways to use 16 bits in training, and they cost different bytes (the table is ``minigpt.memory.plan.PRECISIONS``):

    autocast    the weights stay float32; each matrix product casts its inputs for as long as the graph lives
    master      the weights are bfloat16; the optimizer keeps a float32 copy w32 and updates that one:

        m = b1 m + (1 - b1) g        v = b2 v + (1 - b2) g^2                     all float32
        w32 = w32 (1 - lr * decay) - lr * (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)
        w = bfloat16(w32)

AdamW is Loshchilov and Hutter 2019; the master copy is Micikevicius et al. 2018. bfloat16 keeps 8 bits of precision,
so an update under 1/512 of a weight always rounds away without the copy, and one under 1/256 may.

Left out: foreach and fused loops, amsgrad, sharding of the copy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from minigpt.memory.plan import PRECISIONS
from minigpt.values import check_choice, is_number

MASTER_GRADIENTS = {"bf16-master": "16", "bf16-master-grad32": "32", "bf16-master-grad16+32": "16+32"}


def check_precision(precision: str) -> None:
    """Raise ValueError unless ``precision`` is one of PRECISIONS."""
    check_choice(PRECISIONS, precision=precision)


def weight_dtype(precision: str) -> torch.dtype:
    """The dtype that trainable weights must have."""
    check_precision(precision)
    return torch.float32 if PRECISIONS[precision].weights == 4 else getattr(torch, PRECISIONS[precision].half)


def autocast(precision: str, device: str | torch.device) -> torch.autocast:
    """The context for a forward pass; it changes nothing for a precision without autocast."""
    check_precision(precision)
    name = PRECISIONS[precision].autocast
    return torch.autocast(torch.device(device).type, getattr(torch, name or "bfloat16"), enabled=name is not None)


def native_bf16(device: str | torch.device) -> bool:
    """Whether the device computes in bfloat16 itself. A T4 only emulates it; a CPU without AMX or AVX-512 BF16 too."""
    if torch.device(device).type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


def adamw(parameters: Iterable, precision: str, **options) -> torch.optim.Optimizer:
    """AdamW with the state that the precision asks for: torch's, or the one below. ``options`` go to its constructor.

    "foreach" and "fused", torch's ways to loop over tensors, mean nothing to the one below and are left out there.
    """
    check_precision(precision)
    if not PRECISIONS[precision].float32_update:
        return torch.optim.AdamW(parameters, **options)
    for name in ("foreach", "fused"):
        options.pop(name, None)
    gradients = MASTER_GRADIENTS.get(precision, "16")
    return MasterAdamW(parameters, gradients=gradients, master=PRECISIONS[precision].master > 0, **options)


class OneByOne(torch.optim.Optimizer):
    """An optimizer that updates one parameter after the other, so that what one needs dies before the next.

    Raises ValueError for an option that is a negative number.
    """

    def __init__(self, params: Iterable, **options) -> None:
        for name, value in options.items():
            if is_number(value) and value < 0:
                raise ValueError(f"{name} is {value!r}; it must be 0 or more")
        super().__init__(params, options)

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


class MasterAdamW(OneByOne):
    """AdamW in float32 for bfloat16 weights.

    ``state[p]`` holds float32 tensors of p's shape: "exp_avg", "exp_avg_sq", "master" (unless ``master`` is False: then
    the update is computed in float32 from the rounded weight) and, for gradients "16+32", "gradient".

    ``gradients``: "16" leaves ``p.grad`` in the weight's dtype; "32" makes ``p.grad`` float32, so that micro-batches
    are summed in float32; "16+32" keeps ``p.grad`` and a float32 copy of it, made at each step.
    Raises ValueError for any other ``gradients``, or for negative ``lr``, ``eps`` or ``weight_decay``.
    """

    def __init__(
        self,
        params: Iterable,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        gradients: str = "16",
        master: bool = True,
    ) -> None:
        if gradients not in MASTER_GRADIENTS.values():
            raise ValueError(f"gradients is {gradients!r}; allowed: {', '.join(MASTER_GRADIENTS.values())}")
        self.gradients, self.master = gradients, master
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)
        if gradients == "32":
            for p in self.parameters():
                p.grad_dtype = torch.float32

    def parameters(self) -> Iterable[Tensor]:
        return (p for group in self.param_groups for p in group["params"])

    def _update(self, p: Tensor, grad: Tensor, state: dict, group: dict) -> None:
        if not state:
            self._start(p, state)
        lr, (b1, b2) = group["lr"], group["betas"]
        gradient = state["gradient"].copy_(grad) if self.gradients == "16+32" else grad.float()
        master = state["master"] if self.master else p.float()
        state["step"] += 1
        t, m, v = state["step"], state["exp_avg"], state["exp_avg_sq"]
        master.mul_(1 - lr * group["weight_decay"])
        m.lerp_(gradient, 1 - b1)
        v.mul_(b2).addcmul_(gradient, gradient, value=1 - b2)
        spread = (v.sqrt() / math.sqrt(1 - b2**t)).add_(group["eps"])
        master.addcdiv_(m, spread, value=-lr / (1 - b1**t))
        p.copy_(master)

    def _start(self, p: Tensor, state: dict) -> None:
        state["step"] = 0
        state["exp_avg"] = torch.zeros_like(p, dtype=torch.float32)
        state["exp_avg_sq"] = torch.zeros_like(p, dtype=torch.float32)
        if self.master:
            state["master"] = p.detach().to(torch.float32, copy=True)
        if self.gradients == "16+32":
            state["gradient"] = torch.empty_like(p, dtype=torch.float32)

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict) -> None:
        """As torch's, which casts state to the weight's dtype: so the float32 tensors are put back after it."""
        super().load_state_dict(state_dict)
        for i, p in enumerate(self.parameters()):
            for name, value in state_dict["state"].get(i, {}).items():
                if isinstance(value, Tensor):
                    self.state[p][name] = value.to(p.device, copy=True)


class KahanAdamW(OneByOne):
    """AdamW in the weights' own dtype, with what rounding took away from each weight kept beside it.

    ``state[p]`` holds tensors of p's shape and dtype: "exp_avg", "exp_avg_sq" and "lost". So bfloat16 weights cost 10
    bytes a parameter, with their gradients:

        lost = lost - lr * (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)
        new = w + lost        lost = lost + (w - new)        w = new

    The gradient's tensor serves as the copy of w, so a step leaves it changed. Kahan summation is Kahan 1965; in an
    optimizer, Zamirai et al. 2020, "Revisiting BFloat16 Training". Raises ValueError for negative ``lr`` or ``eps``.
    """

    def __init__(
        self, params: Iterable, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-6
    ) -> None:
        super().__init__(params, lr=lr, betas=betas, eps=eps)

    def _update(self, p: Tensor, grad: Tensor, state: dict, group: dict) -> None:
        if not state:
            state.update(step=0, **{name: torch.zeros_like(p) for name in ("exp_avg", "exp_avg_sq", "lost")})
        lr, (b1, b2) = group["lr"], group["betas"]
        state["step"] += 1
        t, m, v, lost = state["step"], state["exp_avg"], state["exp_avg_sq"], state["lost"]
        m.lerp_(grad, 1 - b1)
        v.mul_(b2).addcmul_(grad, grad, value=1 - b2)
        spread = v.sqrt().div_(math.sqrt(1 - b2**t)).add_(group["eps"])
        lost.addcdiv_(m, spread, value=-lr / (1 - b1**t))
        before = grad.copy_(p)
        p.add_(lost)
        lost.add_(before.sub_(p))
