"""Judging the projection that a student wrote; the truth is an SVD in float64.

    directions(find_projection, gradient)             P, by the space that its directions span
    there_and_back(project, project_back, gradient)   R and what comes back, for a P that is handed over

An SVD is free to turn the sign of each direction round, and so is an answer: what is compared is the projector, P^T P
(n, n) or P P^T (m, m), which no sign changes. The gradients have singular values that halve from one to the next, so
that the first r directions are plain in any dtype.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from minigpt.checks.calling import explained
from minigpt.checks.closing import asked_first, by_hand, knows
from minigpt.checks.comparing import close, show, values
from minigpt.checks.naming import Hints, given
from minigpt.checks.verdict import Wrong
from minigpt.optim import GaLoreAdamW

knows(__name__, "minigpt.optim.galore", "minigpt.optim.adam", GaLoreAdamW._update)
HINTS = {  # part of what an answer's error says: what it means here
    "float division by zero": "1 - b^t is zero where t is 0; it is 1 in the first step",
    "not implemented for 'BFloat16'": "There is no SVD in 16 bits: take that of G.float()",
}


class Gradient(NamedTuple):
    """A gradient, and the rank that it is projected to; ``turned``: in memory it lies column after column."""

    shape: tuple[int, int]
    rank: int
    dtype: torch.dtype = torch.float32
    seed: int = 0
    turned: bool = False

    @property
    def text(self) -> str:
        return f"a {str(self.dtype)[6:]} gradient of {self.shape}{', a transpose' * self.turned}, rank {self.rank}"

    @property
    def tall(self) -> bool:
        return self.shape[0] >= self.shape[1]

    def tensor(self) -> Tensor:
        draw, k = torch.Generator().manual_seed(self.seed), min(self.shape)
        U, V = (torch.linalg.qr(torch.randn(n, k, generator=draw, dtype=torch.float64))[0] for n in self.shape)
        G = (U * 2.0 ** -torch.arange(k, dtype=torch.float64) @ V.T).to(self.dtype)
        return G.T.contiguous().T if self.turned else G.contiguous()


def directions(find: Callable, gradient: Gradient) -> None:
    """``find_projection(G, rank)`` -> P, (r, n) where m >= n, else (m, r)."""
    G = gradient.tensor()
    P = ask(find, G, gradient.rank, twice=False)
    what = f"{gradient.text}: P"
    plain_tensor(P, what)
    _shape(P, gradient, what)
    if P.dtype != gradient.dtype:
        dtypes = f"its dtype is {str(P.dtype)[6:]}; it is kept in the gradient's, {str(gradient.dtype)[6:]}"
        raise Wrong("wrong-dtype", f"{what}: {dtypes}")
    spans(P, G, gradient.rank, what)
    if (kept := P.untyped_storage().nbytes()) > P.numel() * P.element_size():
        raise Wrong(
            "view",
            f"{what}: it has {P.numel() * P.element_size():,} bytes of numbers and keeps {kept:,} alive: it is a view, "
            "and the whole factor stays with it; keep a copy",
        )


def there_and_back(project: Callable, project_back: Callable, gradient: Gradient) -> None:
    """``project(G, P)`` -> R, and ``project_back(R, P)`` in G's shape, for a P whose signs are mixed."""
    G = gradient.tensor()
    P = first(G, gradient.rank).to(G.dtype)
    R = torch.randn(_low(gradient), generator=torch.Generator().manual_seed(gradient.seed)).to(G.dtype)
    low, back = asked_first([partial(ask, project, G, P), partial(ask, project_back, R, P)])
    low_truth, back_truth = (G @ P.T, R @ P) if gradient.tall else (P.T @ G, P @ R)
    close(low, low_truth, f"{gradient.text}: R", dtype=G.dtype, rtol=1e-4, atol=1e-5)
    close(back, back_truth, f"{gradient.text}: R, projected back", dtype=G.dtype, rtol=1e-4, atol=1e-5)


def ask(function: Callable, *args, **options):
    """``by_hand``, with a hint where its error has one."""
    try:
        return by_hand(function, *args, **options)
    except Wrong as verdict:
        raise explained(verdict, HINTS) from verdict.__cause__


def plain_tensor(got, what: str) -> None:
    if type(got) is not Tensor:
        raise Wrong("wrong-type", f"{what}: {show(got)} is of type {type(got).__name__}; a torch.Tensor is asked for")


def spans(P, G: Tensor, rank: int, what: str) -> None:
    """P has orthonormal directions, and they are the first ``rank`` of G."""
    P, tall, near = values(P, what), G.shape[0] >= G.shape[1], 1e-3 if G.dtype == torch.float32 else 2e-2
    gram, projector = (P @ P.T, P.T @ P) if tall else (P.T @ P, P @ P.T)
    if not ((gram - torch.eye(len(gram))).abs() < 2 * near).all().item():
        raise Wrong("not-orthonormal", f"{what}: its directions are not orthonormal, as those of an SVD are")
    wrong = given(_mistakes(G, rank), lambda other: _projector(other, tall))
    close(projector, _projector(first(G, rank), tall), f"{what}: its directions", rtol=0, atol=2 * near, wrong=wrong)


def first(G: Tensor, rank: int) -> Tensor:
    """P of the first ``rank`` directions of G, float64."""
    U, _, Vh = torch.linalg.svd(G.double(), full_matrices=False)
    return Vh[:rank] if G.shape[0] >= G.shape[1] else U[:, :rank]


def _projector(P: Tensor, tall: bool) -> Tensor:
    return P.T @ P if tall else P @ P.T


def _low(gradient: Gradient) -> tuple[int, int]:
    (m, n), r = gradient.shape, gradient.rank
    return (m, r) if gradient.tall else (r, n)


def _shape(P: Tensor, gradient: Gradient, what: str) -> None:
    (m, n), r = gradient.shape, gradient.rank
    right, other = ((r, n), (m, r)) if gradient.tall else ((m, r), (r, n))
    if tuple(P.shape) == right:
        return
    size = f"its shape is {tuple(P.shape)}, not {right}"
    if tuple(P.shape) == other:
        raise Wrong(
            "other-side",
            f"{what}: {size}: the other side's. The shorter side becomes r: V_r^T where m >= n, U_r where m < n",
        )
    if tuple(P.shape) == right[::-1]:
        raise Wrong("transposed", f"{what}: {size}: it is transposed")
    if P.numel() == min(m, n) * (n if gradient.tall else m):
        raise Wrong("all-directions", f"{what}: {size}: all directions are in it; the first {r} are asked for")
    raise Wrong("wrong-shape", f"{what}: {size}")


def _mistakes(G: Tensor, rank: int) -> Hints:
    """The P that a mistake gives; of those that have P's shape."""
    U, _, Vh = torch.linalg.svd(G.double(), full_matrices=False)
    tall = G.shape[0] >= G.shape[1]
    wrong = {
        "last-directions": ("they are the last directions; those of the largest singular values come first",
                            Vh[-rank:] if tall else U[:, -rank:]),
        "factor-transposed": ("they are columns of V^T, or rows of U; the directions are the rows of V^T, the columns "
                              "of U", Vh[:, :rank].T if tall else U[:rank].T),
        "axes": ("they are the axes: the first columns or rows of G itself, and no directions of its SVD",
                 torch.eye(*Vh.shape)[:rank].double() if tall else torch.eye(*U.shape)[:, :rank].double()),
    }  # fmt: skip
    if G.shape[0] == G.shape[1]:
        wrong["other-factor"] = (
            "they are those of U; a square G is projected from the right, as m >= n",
            U[:, :rank].T,
        )
    return wrong
