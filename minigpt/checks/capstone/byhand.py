"""Judging two computations by hand: what the default recipe needs, and the least time that an epoch takes.

    defaults(answer, (model, tokens), only)     ``answer(parameters, tensors, tokens, words)``: bytes by bucket
    counts(answer, (lengths, seq_len))          ``answer(lengths, seq_len)``: {"useful", "computed"}, tokens
    lasts(answer, case)                         ``answer(weights, tokens, frozen, again, speed)``: seconds

The truths are ``predict_static`` of a plan that says nothing, and the FLOPs of linear layers (``predicted.flops``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from minigpt.checks.closing import by_hand, knows
from minigpt.checks.comparing import buckets, close, integer, show
from minigpt.checks.naming import Hints
from minigpt.checks.verdict import Wrong
from minigpt.memory.families import Architecture
from minigpt.memory.plan import TrainingPlan
from minigpt.memory.predicted.static import predict_static

knows(__name__, predict_static)


class Epoch(NamedTuple):
    """``weights``: those that each token is multiplied with. ``speed``: FLOPs per second."""

    weights: int
    tokens: int
    frozen: bool
    again: bool
    speed: float


def sizes(model) -> tuple[int, int, int]:
    """(parameters, tensors, words) of a model."""
    a = Architecture.of(model)
    return a.parameters, len(a.tensors()), a.vocab_size


def defaults(answer: Callable, case: tuple, only: Iterable[str]) -> None:
    model, tokens = case
    parameters, tensors, words = sizes(model)
    mine = by_hand(answer, parameters, tensors, tokens, words)
    held = predict_static(model, TrainingPlan()).as_dict()
    held["weights"] -= sum(Architecture.of(model).buffers())  # of rotary positions, which are no parameters
    right = {name: held[name] for name in ("weights", "gradients", "optimizer")} | {"logits": 4 * tokens * words}
    what = f"{parameters:,} parameters, {tokens:,} tokens"
    buckets(mine, right, what, slips=default_slips(parameters, tensors, tokens, words), only=only)


def default_slips(parameters: int, tensors: int, tokens: int, words: int) -> dict[str, list[Hints]]:
    """{bucket: bytes too many}."""
    n = parameters
    return {
        "weights": [{"two-byte-weights": ("2 bytes per weight; nothing was said, so they are float32", -2 * n)}],
        "gradients": [{"two-byte-gradients": ("2 bytes per gradient; it has its weight's dtype, float32", -2 * n)}],
        "optimizer": [
            {"no-step-counts": ("AdamW's step counts are missing: a float32 for each tensor", -4 * tensors),
             "one-step-count": ("one step count is booked, and each tensor has its own", 4 - 4 * tensors)},
            {"one-moment": ("one of AdamW's two moments is missing", -4 * n),
             "master-copy": ("a master copy is booked; float32 weights have none", 4 * n)},
        ],
        "logits": [{
            "two-byte-logits": ("2 bytes per logit; the model computes in float32", -2 * tokens * words),
            "with-their-gradient": ("twice the logits; they alone are asked for", 4 * tokens * words),
        }],
    }  # fmt: skip


def counts(answer: Callable, case: tuple[dict[int, int], int]) -> None:
    lengths, seq_len = case
    mine = by_hand(answer, lengths, seq_len)
    useful, rows = sum(length * count for length, count in lengths.items()), sum(lengths.values())
    if not isinstance(mine, Mapping) or set(mine) != {"useful", "computed"}:
        raise Wrong("wrong-keys", f"{show(mine)} is given; a dictionary with useful and computed is asked for")
    what, once = f"{rows:,} documents in rows of {seq_len:,}", "each length is counted once; its value says how many "
    integer(mine["useful"], useful, f"{what}, useful", wrong={
        "kinds-not-documents": (f"{once}documents have it", sum(lengths)),
        "rows": ("these are documents, and tokens are asked for", rows),
    })  # fmt: skip
    integer(mine["computed"], rows * seq_len, f"{what}, computed", wrong={
        "kinds-not-documents": (f"{once}documents have it", len(lengths) * seq_len),
        "rows": ("these are rows, and tokens are asked for", rows),
        "filling-alone": ("these are the tokens that fill rows up; a row's own are computed, too",
                          rows * seq_len - useful),
        "not-filled": ("these are the documents' own tokens; a row is filled up, and all of it is computed", useful),
    })  # fmt: skip


def lasts(answer: Callable, case: Epoch) -> None:
    mine = by_hand(answer, *case)
    right = per_weight(case.frozen, case.again)
    once = case.weights * case.tokens / case.speed
    given = {
        "no-weight-gradients": ("these weights are trained, and their gradients take 2 FLOPs per token and weight",
                                per_weight(True, case.again)),
        "frozen-has-gradients": ("a frozen weight has no gradient of its own; only its input has one",
                                 per_weight(False, case.again)),
        "not-again": ("checkpointing runs the forward again: 2 FLOPs more", per_weight(case.frozen, False)),
        "again-unasked": ("nothing is run again here", per_weight(case.frozen, True)),
        "forward-alone": ("that is the forward pass alone", 2),
        "multiply-add-is-two": ("a multiplication and an addition are two FLOPs", right / 2),
    }  # fmt: skip
    wrong = {id: (text, value * once) for id, (text, value) in given.items() if value != right}
    close(mine, right * once, f"{case.weights:,} weights, {case.tokens:,} tokens, frozen={case.frozen}, "
          f"again={case.again}", rtol=1e-6, atol=0, wrong=wrong)  # fmt: skip


def per_weight(frozen: bool, again: bool) -> int:
    """FLOPs for each token and weight of a step: forward, the input's gradient, the weight's own, and forward again."""
    return 2 + 2 + 2 * (not frozen) + 2 * again
