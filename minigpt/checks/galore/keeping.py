"""The bytes of GaLore: its state, an SVD's temporaries, and the rank for a budget. The truth is the meter's.

    stores(answer, (config, rank, precision))      ``answer(matrices, others, rank, itemsize)``: bytes of the state
    makes(answer, (m, n, itemsize))                ``answer(m, n, itemsize)``: bytes beside G while its SVD is there
    fits(answer, (config, precision, budget))      ``answer(matrices, others, itemsize, budget)``: the largest rank
    refuses(answer, (config, precision, budget))   where no rank fits

The meter measures a real step on fake tensors; the rank for a budget is arithmetic, which it confirms on both sides.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import torch

from minigpt.checks.calling import name_of
from minigpt.checks.closing import by_hand, knows, remembered
from minigpt.checks.comparing import integer, show
from minigpt.checks.naming import Hints
from minigpt.checks.verdict import Wrong
from minigpt.memory.families import Architecture
from minigpt.memory.measured.meter import MemoryMeter
from minigpt.memory.measured.step import measure
from minigpt.memory.plan import TrainingPlan
from minigpt.memory.predicted import galore, static
from minigpt.model import GPTConfig

knows(__name__, galore.__name__, static.__name__)
ITEMSIZE = {"fp32": 4, "bf16": 2}
Matrices = list[tuple[int, int]]


def stores(answer: Callable, case: tuple) -> None:
    config, rank, precision = case
    matrices, others = parts(config)
    size = matrices, others, rank, ITEMSIZE[precision]
    mine = by_hand(answer, *size)
    what = f"{len(matrices)} matrices, rank {rank}, {precision}"
    integer(
        mine,
        metered(config, rank, precision)[1],
        what,
        wrong=state_values(*size),
        slips=state_slips(*size),
        unit="bytes",
    )


def makes(answer: Callable, case: tuple[int, int, int]) -> None:
    mine = by_hand(answer, *case)
    what = "a gradient of ({}, {}), {} bytes per number".format(*case)
    integer(mine, temporaries(*case), what, slips=svd_slips(*case), unit="bytes")


def fits(answer: Callable, case: tuple) -> None:
    config, precision, budget = case
    matrices, others = parts(config)
    what = f"{len(matrices)} matrices, {precision}, {budget:,} bytes"
    try:
        mine = by_hand(answer, matrices, others, ITEMSIZE[precision], budget)
    except Wrong as verdict:
        if not isinstance(verdict.__cause__, ValueError):
            raise
        raise Wrong(verdict.id, f"{what}: a rank fits; {verdict}") from verdict.__cause__
    right = _largest(config, precision, budget)
    integer(mine, right, what, wrong=rank_values(matrices, others, ITEMSIZE[precision], budget))


def refuses(answer: Callable, case: tuple) -> None:
    config, precision, budget = case
    matrices, others = parts(config)
    what = f"{len(matrices)} matrices, {precision}, {budget:,} bytes"
    try:
        given = by_hand(answer, matrices, others, ITEMSIZE[precision], budget, none_ok=True)
    except Wrong as verdict:
        if isinstance(verdict.__cause__, ValueError):
            return
        if verdict.__cause__ is None:
            raise
        raise Wrong(verdict.id, f"{what}: no rank fits, so a ValueError is asked for; {verdict}") from verdict.__cause__
    raise Wrong("not-refused", f"{what}: not even rank 1 fits; {name_of(answer)} gives {show(given)}: raise ValueError")


# ---------------------------------------------------------------- truths


def parts(config: dict | GPTConfig) -> tuple[Matrices, int]:
    """The blocks' matrices as (m, n), and how many parameters the model has besides."""
    a = Architecture.of(config)
    return [(t.shape[0], t.shape[1]) for t in a.tensors() if t.kind == "linear"], a.parameters - a.linear_parameters


def metered(config: dict | GPTConfig, rank: int, precision: str) -> tuple[int, int]:
    """(weights and gradients, state) between two steps, in bytes; no buffers."""
    key = json.dumps(config if isinstance(config, dict) else vars(config), sort_keys=True)
    return _metered(key, isinstance(config, dict), rank, precision)


@remembered
def _metered(config: str, hugging_face: bool, rank: int, precision: str) -> tuple[int, int]:
    read = json.loads(config)
    model = read if hugging_face else GPTConfig(**read)
    plan = TrainingPlan(batch=1, seq_len=4, optimizer="galore", rank=rank, precision=precision)
    ledger = measure(model, plan).ledger
    return ledger.weights - sum(Architecture.of(model).buffers()) + ledger.gradients, ledger.optimizer


@remembered
def temporaries(m: int, n: int, itemsize: int) -> int:
    """Bytes that the SVD reads and makes beside the gradient itself, at the most."""
    G = torch.randn(m, n, generator=torch.Generator().manual_seed(0)).to(
        torch.float32 if itemsize == 4 else torch.bfloat16
    )
    with MemoryMeter(inputs=(G,)) as meter:
        whole = G.float()
        factors = torch.linalg.svd(whole, full_matrices=False)
        del factors
    return meter.result().peak.total - itemsize * m * n


def _largest(config: dict | GPTConfig, precision: str, budget: int) -> int:
    """The largest rank for a budget, by arithmetic; RuntimeError if the meter says otherwise."""
    (matrices, others), b = parts(config), ITEMSIZE[precision]
    smallest = min(map(min, matrices))
    fixed = 2 * (others + _area(matrices)) + 2 * others  # weights, gradients, and the others' moments
    rank = min(smallest, (budget - b * fixed) // (b * _per_rank(matrices)))
    beyond = rank < smallest and sum(metered(config, rank + 1, precision)) <= budget
    if beyond or sum(metered(config, rank, precision)) > budget:
        raise RuntimeError(f"rank {rank} is not the largest that the meter finds in {budget:,} bytes")
    return rank


def _area(matrices: Matrices) -> int:
    return sum(m * n for m, n in matrices)


def _per_rank(matrices: Matrices) -> int:
    """Elements of state for each unit of the rank."""
    return sum(min(shape) + 2 * max(shape) for shape in matrices)


# ---------------------------------------------------------------- slips


def state_slips(matrices: Matrices, others: int, rank: int, itemsize: int) -> list[Hints]:
    """Bytes too many in the state: of the matrices, where many slips are the sum of two, and of the others."""
    short, long = (sum(side(shape) for shape in matrices) for side in (min, max))
    rows, columns = map(sum, zip(*matrices))
    squares, area, b = sum(min(shape) ** 2 for shape in matrices), _area(matrices), itemsize
    return [{
        "no-projection": ("the projections are missing: min(m, n) r elements for each matrix", -b * rank * short),
        "long-projection": ("P is booked with the longer side; it has the shorter one, min(m, n) r elements",
                            b * rank * (long - short)),
        "sides-swapped": ("the two sides are swapped: P has the shorter one, each moment the longer one",
                          b * rank * (short - long)),
        "as-wide": ("every matrix is counted as a wide one, P of m r and moments of n r elements; where m >= n it is "
                    "the other way round", b * rank * (rows + 2 * columns - short - 2 * long)),
        "as-tall": ("every matrix is counted as a tall one, P of n r and moments of m r elements; where m < n it is "
                    "the other way round", b * rank * (columns + 2 * rows - short - 2 * long)),
        "float32-projection": ("P is booked in float32; it has the gradient's dtype", (4 - b) * rank * short),
        "whole-factor": ("the whole factor of the SVD is booked; of P the first r directions are kept",
                         b * (squares - rank * short)),
        "both-factors": ("a P for each side is booked; a matrix has one, from its shorter side", b * rank * long),
        "one-moment": ("one of the two moments of the projected gradients is missing", -b * rank * long),
        "no-moments": ("the moments of the projected gradients are missing", -2 * b * rank * long),
        "short-moments": ("the moments are booked with the shorter side; that becomes r, and the longer one stays",
                          2 * b * rank * (short - long)),
        "whole-moments": ("moments of W's own size are booked; they have the projected gradient's",
                          2 * b * (area - rank * long)),
        "moments-of-rows": ("the moments are booked with m r; where m < n they have n r", 2 * b * rank * (rows - long)),
        "moments-of-columns": ("the moments are booked with n r; where m > n they have m r",
                               2 * b * rank * (columns - long)),
    }, {
        "no-others": ("what is not projected is missing: Adam's two moments of each of the others", -2 * b * others),
        "one-other": ("what is not projected has two moments, and one is booked", -b * others),
        "others-weights": ("the other parameters are booked themselves; they are weights, not state", b * others),
    }]  # fmt: skip


def state_values(matrices: Matrices, others: int, rank: int, itemsize: int) -> Hints:
    """What a mistake gives."""
    elements = rank * _per_rank(matrices) + 2 * others
    return {
        "adam": ("that is Adam's state, two moments for every parameter", 2 * itemsize * (_area(matrices) + others)),
        "float32": ("float32 is booked; state has the gradient's dtype, of itemsize bytes",
                    0 if itemsize == 4 else 4 * elements),
        "elements": ("those are elements; bytes are asked for", elements),
        "no-rank": ("the rank is forgotten", itemsize * (_per_rank(matrices) + 2 * others)),
    }  # fmt: skip


def svd_slips(m: int, n: int, itemsize: int) -> list[Hints]:
    k = min(m, n)
    factors = m * k + k * n
    copy = {
        "no-copy": ("the SVD is made in float32, so a 16-bit gradient has a float32 copy", -4 * m * n),
        "two-byte-copy": ("the copy of the gradient is booked in 2 bytes; it is float32", -2 * m * n),
        "gradient-counted": ("the gradient itself is counted; what is there beside it is asked for", 2 * m * n),
    } if itemsize == 2 else {
        "copy": ("the gradient, or a copy of it, is counted; a float32 gradient needs no copy, and it is not asked for",
                 4 * m * n),
    }  # fmt: skip
    long = max(m, n)
    missing = {"only-u": ("V^T is missing: k x n", -4 * k * n), "only-vt": ("U is missing: m x k", -4 * m * k)}
    if itemsize == 2:  # the larger factor has G's size, as the copy that one forgets
        del missing["only-u" if m <= n else "only-vt"]
    return [copy, missing | {
        "full-matrices": ("square factors are booked, m x m and n x n; with full_matrices=False they have k columns, "
                          "and k rows", 4 * (m * m + n * n - factors)),
        "diagonal": ("the singular values are booked as a k x k matrix; they are k numbers", 4 * (k * k - k)),
        "long-k": ("k is taken for the longer side; it is the shorter one", 4 * (long - k) * (m + n + 1)),
        "two-byte-factors": ("the factors are booked in 2 bytes; the SVD is made in float32", -2 * factors),
    }, {
        "no-singular-values": ("the singular values are missing, k of them", -4 * k),
        "two-byte-singular-values": ("the singular values are booked in 2 bytes; they are float32", -2 * k),
    }]  # fmt: skip


def rank_values(matrices: Matrices, others: int, itemsize: int, budget: int) -> Hints:
    """The rank that a mistake gives."""
    b, area, smallest = itemsize, _area(matrices), min(map(min, matrices))
    short, long = (sum(side(shape) for shape in matrices) for side in (min, max))

    def rank(fixed: int, each: int, most: int = smallest) -> int:
        return min(most, (budget - b * fixed) // (b * each))

    whole, each = 4 * others + 2 * area, short + 2 * long
    right = rank(whole, each)
    hints = {
        "not-capped": ("no matrix has more directions than its shorter side: the smallest side of all is the most",
                       rank(whole, each, budget)),
        "capped-by-another": ("the smallest side of all matrices is the most, and not that of one of them; here one "
                              "has fewer directions", rank(whole, each, min(matrices[0]))),
        "gradients-forgotten": ("the gradients are forgotten: one number for each parameter",
                                rank(3 * others + area, each)),
        "state-alone": ("the budget is for weights, gradients and state together; the state alone is counted",
                        rank(2 * others, each)),
        "others-forgotten": ("the two moments of each of the others are forgotten", rank(2 * (others + area), each)),
        "one-moment": ("one of the two moments is forgotten", rank(whole - others, short + long)),
        "no-projection": ("the projections are forgotten, min(m, n) for each unit of r", rank(whole, 2 * long)),
        "one-too-many": ("that is one too many: round down", min(smallest, right + 1)),
        "one-too-few": ("one more fits", right - 1),
    }  # fmt: skip
    return {id: hint for id, hint in hints.items() if hint[1] != right}
