"""What galore-torch 1.0 does, recorded: ``python -m tests.record_galore`` writes readings/galore.json.

galore-torch is no dependency: ``pip install --no-deps galore-torch==1.0`` first. Gradients are made by formula, so that
they are the same on every machine. An SVD may choose the sign of each direction, and the moments, which stay when the
projection changes, meet it: so the signs are fixed here.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn

RECORD = Path(__file__).parent / "readings" / "galore.json"
SHAPES = ((6, 4), (4, 6), (5, 5))
KINDS = ("std", "reverse_std", "left", "right", "full")
STEPS, RANK, GAP, SCALE = 8, 2, 3, 0.25
OPTIONS = dict(lr=0.1, weight_decay=0.1)


def gradient(shape: tuple[int, int], step: int) -> Tensor:
    """A float32 matrix of full rank, another in each step."""
    i, j = torch.meshgrid(*(torch.arange(n, dtype=torch.float64) for n in shape), indexing="ij")
    return torch.sin(1.3 * i * j + 0.7 * i + (step + 1) * (j + 0.4) ** 2).float()


def signed(U, Vh):
    """The two, with signs such that the largest entry of each column of U is positive; for numpy and for torch."""
    signs = [1.0 if column[abs(column).argmax()] > 0 else -1.0 for column in U.T]
    signs = type(U)(signs) if isinstance(U, Tensor) else np.array(signs)
    return U * signs, signs[:, None] * Vh


def signed_svd(matrix: Tensor, full_matrices: bool = False, svd=torch.linalg.svd):
    U, S, Vh = svd(matrix, full_matrices=full_matrices)
    U, Vh = signed(U, Vh)
    return U, S, Vh


def trained(optimizer: type[torch.optim.Optimizer], shape: tuple[int, int], kind: str) -> tuple[Tensor, dict]:
    """The weight after all steps, and its state."""
    p = nn.Parameter(gradient(shape, -1))
    group = dict(params=[p], rank=RANK, update_proj_gap=GAP, scale=SCALE, proj_type=kind)
    steps = optimizer([group], **OPTIONS)  # type: ignore[call-arg]
    with mock.patch.object(torch.linalg, "svd", signed_svd):
        for step in range(STEPS):
            p.grad = gradient(shape, step)
            steps.step()
    return p.detach(), steps.state[p]


def main() -> None:
    from galore_torch import GaLoreAdamW  # type: ignore[import-not-found]

    warnings.simplefilter("ignore", FutureWarning)  # it is a copy of an old optimizer, and says so
    cases = []
    for shape in SHAPES:
        for kind in KINDS:
            weight, state = trained(GaLoreAdamW, shape, kind)
            kept = state["projector"].ortho_matrix
            stored = [P.untyped_storage().nbytes() // 4 for P in (kept if isinstance(kept, list) else [kept])]
            moments = [list(state[name].shape) for name in ("exp_avg", "exp_avg_sq")]
            cases.append(dict(shape=shape, kind=kind, weight=weight.tolist(), moments=moments, stored=stored))
    RECORD.write_text(json.dumps(cases) + "\n", encoding="utf8")


if __name__ == "__main__":
    main()
