"""GaLore: Adam on a projection of the gradient, so that m and v are small while the weight is trained whole.

    every gap steps:   U S V^T = svd(G)                  of the step's own gradient, in float32
    project:           R = U_r^T G      or  G V_r        the r directions in which this gradient is largest
    Adam on R:         D = m / (sqrt(v) + eps)           m and v have R's shape
    project back:      W = W - lr' scale U_r D   or  D V_r^T          lr' = lr sqrt(1 - b2^t) / (1 - b1^t)

Then W decays by lr * decay. For a matrix (m, n), state in elements, in the gradient's dtype:

    kind           P is                              kept                        of 4096 x 4096 at r = 128
    std            V_r (r, n) if m >= n, else U_r    min r + 2 max r             1.6 million, where Adam has 33.6
    reverse_std    U_r (m, r) if m >= n, else V_r    max r + 2 min r             (less where a matrix is not square)
    left, right    always U_r; always V_r            as above, by the shape
    full           both                              (m + n) r + 2 r^2

The whole gradient is still made by backward: only with ``InBackward`` is one of them there at a time. m and v stay when
P changes, although they are then of other directions. A gap too short costs an SVD each time and leaves m no time to
become a mean; one too long trains in directions that no longer matter.

Source: Zhao et al. 2024, arXiv 2403.03507, and galore-torch 1.0, whose numbers these are, its names of options too.
It recommends rank 128, gap 200, scale 0.25 for training from scratch. It takes more memory: its update makes two
tensors of W's size, where here the product is added in place; and in float32 its P is a view, which keeps all of U or
V^T.

Left out: GaLore on Adafactor and on 8-bit Adam, tensors of more than two dimensions, quantized projections.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from minigpt.lora.matching import ALL_LINEAR, select
from minigpt.optim.one_by_one import OneByOne
from minigpt.values import check_choice, check_counts, is_number

KINDS = ("std", "reverse_std", "left", "right", "full")
DEFAULTS = dict(update_proj_gap=200, scale=1.0, proj_type="std")

# ---------------------------------------------------------------- the projection


def sides(shape: tuple[int, ...], kind: str) -> tuple[bool, bool]:
    """(left, right): from which sides a gradient of this shape is projected. Left shortens m to r, right shortens n."""
    check_choice(KINDS, proj_type=kind)
    tall = shape[0] >= shape[1]
    left = {"std": not tall, "reverse_std": tall, "left": True, "right": False, "full": True}[kind]
    return left, not left or kind == "full"


def find_projection(grad: Tensor, rank: int, kind: str = "std") -> dict[str, Tensor]:
    """The r largest directions of ``grad`` (m, n), in its dtype: "left" (m, r), "right" (r, n), or both.

    Raises ValueError for a rank that is not an integer from 1 to the shorter side, for a ``grad`` that is no matrix,
    and for one with NaN or infinity.
    """
    if grad.ndim != 2:
        raise ValueError(f"the gradient has shape {tuple(grad.shape)}; GaLore projects matrices: it must be (m, n)")
    left, right = sides(tuple(grad.shape), kind)
    if isinstance(rank, bool) or not isinstance(rank, int) or not 1 <= rank <= min(grad.shape):
        allowed = f"an integer from 1 to {min(grad.shape)}"
        raise ValueError(f"rank is {rank!r}; it must be {allowed} for a gradient of shape {tuple(grad.shape)}")
    try:
        U, _, Vh = torch.linalg.svd(grad.float(), full_matrices=False)  # (m, k), (k,), (k, n); k the shorter side
    except torch.linalg.LinAlgError:
        raise ValueError(f"a gradient of shape {tuple(grad.shape)} holds NaN or infinity, and has no SVD") from None
    found = {}  # copies: a view would keep all of U alive
    if left:
        found["left"] = U[:, :rank].to(grad.dtype, copy=True)
    if right:
        found["right"] = Vh[:rank].to(grad.dtype, copy=True)
    return found


def project(grad: Tensor, left: Tensor | None = None, right: Tensor | None = None) -> Tensor:
    """``grad`` (m, n) in the projection's directions: (r, n), (m, r) or (r, r)."""
    if left is not None:
        grad = left.T @ grad
    return grad if right is None else grad @ right.T


def project_back(low: Tensor, left: Tensor | None = None, right: Tensor | None = None) -> Tensor:
    """What ``project`` made, in the matrix's own shape (m, n). Of what was not in the directions nothing comes back."""
    if left is not None:
        low = left @ low
    return low if right is None else low @ right


# ---------------------------------------------------------------- the optimizer


class GaLoreAdamW(OneByOne):
    """AdamW, on projected gradients in groups that have a "rank"; their parameters must be matrices.

    Such a group can also have "update_proj_gap" (200), "scale" (1.0) and "proj_type" ("std"), one of ``KINDS``.
    ``state[p]`` holds "step", "exp_avg" and "exp_avg_sq" of the projected gradient's shape and dtype, and "left",
    "right" or both. Raises ValueError for options out of their range, and, when a projection is made, as
    ``find_projection`` does.
    """

    def __init__(
        self, params: Iterable, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-6,
        weight_decay: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group({**DEFAULTS, **param_group} if "rank" in param_group else param_group)

    def _check(self, options: dict[str, Any]) -> None:
        super()._check(options)
        if "rank" in options:
            check_counts(rank=options["rank"], update_proj_gap=options["update_proj_gap"])
            check_choice(KINDS, proj_type=options["proj_type"])
            if not is_number(options["scale"]) or not 0 < options["scale"] < math.inf:
                raise ValueError(f"scale is {options['scale']!r}; it must be a number above 0")

    def _update(self, p: Tensor, grad: Tensor, state: dict, group: dict) -> None:
        step = state.get("step", 0)
        if "rank" in group and step % group["update_proj_gap"] == 0:
            state.update(find_projection(grad, group["rank"], group["proj_type"]))
        left, right = state.get("left"), state.get("right")
        low = project(grad, left, right)  # the gradient itself in a group without a rank
        if step == 0:
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(low), torch.zeros_like(low)
        lr, (b1, b2), m, v = group["lr"], group["betas"], state["exp_avg"], state["exp_avg_sq"]
        state["step"] = t = step + 1
        m.mul_(b1).add_(low, alpha=1 - b1)
        v.mul_(b2).addcmul_(low, low, value=1 - b2)
        direction = m / v.sqrt().add_(group["eps"])  # of low's shape
        size = lr * math.sqrt(1 - b2**t) / (1 - b1**t) * group.get("scale", 1.0)
        if left is not None and right is not None:
            left, direction = left @ direction, None  # (m, r)
            p.addmm_(left, right, alpha=-size)
        elif left is not None:
            p.addmm_(left, direction, alpha=-size)
        elif right is not None:
            p.addmm_(direction, right, alpha=-size)
        else:
            p.add_(direction, alpha=-size)
        p.mul_(1 - lr * group["weight_decay"])


def galore_groups(
    model: nn.Module, rank: int, targets: str | Collection[str] = ALL_LINEAR, *, update_proj_gap: int = 200,
    scale: float = 0.25, proj_type: str = "std",
) -> list[dict[str, Any]]:  # fmt: skip
    """Two groups for ``GaLoreAdamW``: the weights of the layers that ``targets`` names, projected, and all others.

    ``targets`` are read as adapters' are (``minigpt.lora.matching``): "all-linear" is every linear layer of the blocks.
    Frozen parameters are in no group. Raises ValueError for a name that no layer has.
    """
    matrices = [linear.weight for linear in select(model, targets).values() if linear.weight.requires_grad]
    chosen = {id(weight) for weight in matrices}
    others = [p for p in model.parameters() if p.requires_grad and id(p) not in chosen]
    options = dict(rank=rank, update_proj_gap=update_proj_gap, scale=scale, proj_type=proj_type)
    return [dict(params=matrices, **options), dict(params=others)]
