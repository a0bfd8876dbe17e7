"""Judging gradient accumulation that a student wrote; the truth is the gradient of the whole batch at once.

    adds(accumulate, case)        ``accumulate(model, tokens, targets, rows)`` adds to .grad what one backward would
    returns(accumulate, case)     and returns the mean loss
    few(accumulate)               by what is saved: the activations are those of one micro-batch

A case has the target tokens of each sequence, and how many sequences make a micro-batch.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from minigpt.checks.activations import asking  # noqa: F401  closes the book
from minigpt.checks.activations.chunks import rounded
from minigpt.checks.closing import asked_first, knows
from minigpt.checks.comparing import close, same, show
from minigpt.checks.naming import Hints, given
from minigpt.checks.probes import accumulating
from minigpt.checks.training import TINY, gradients_of, mix, unsure_model
from minigpt.checks.verdict import Wrong
from minigpt.model import GPT, IGNORE

knows(__name__)
Gradients = dict[str, Tensor]


class Case(NamedTuple):
    """Target tokens in each sequence, and how many sequences make a micro-batch; the last may be smaller."""

    counts: tuple[int, ...]
    rows: int

    @property
    def text(self) -> str:
        return f"{len(self.counts)} sequences in micro-batches of {self.rows}"

    @property
    def parts(self) -> list[int]:
        """Target tokens in each micro-batch."""
        return [sum(self.counts[i : i + self.rows]) for i in range(0, len(self.counts), self.rows)]


def adds(accumulate: Callable, case: Case) -> None:
    calls = [partial(_call, accumulate, case, filled=filled) for filled in (None, 0.5)]
    for reference, _, before, after in asked_first(calls):
        what = f"{case.text}, .grad" + (" where it was not empty" if before else "")
        whole = gradients_of(reference, *batch(case))
        truth = {name: whole[name] + before.get(name, 0) for name in whole}
        close(after, truth, what, rtol=1e-4, atol=2e-5, wrong=_wrong(reference, case, before, whole))


def returns(accumulate: Callable, case: Case) -> None:
    [(reference, loss, _, _)] = asked_first([partial(_call, accumulate, case)])
    what = f"{case.text}, the returned loss"
    if loss is None:
        raise Wrong("returns-nothing", f"{what}: it returns nothing; end it in a return")
    if isinstance(loss, Tensor):
        raise Wrong("loss-tensor", f"{what}: it is a tensor; return a plain float: .item() also lets go of the graph")
    if not isinstance(loss, float):
        raise Wrong("wrong-type", f"{what}: {show(loss)} is of type {type(loss).__name__}; a float is asked for")
    if not math.isfinite(loss) and 0 in case.parts:
        raise Wrong(
            "no-targets", f"{what}: it is {loss}. One micro-batch has no target token, so its mean loss is 0 / 0"
        )
    with torch.no_grad():
        pieces = [reference(*part).item() if count else 0.0 for part, count in zip(_split(case), case.parts)]
        truth = reference(*batch(case)).item()
    wrong = given(weightings(case), lambda shares: sum(share * piece for share, piece in zip(shares, pieces)))
    close(loss, truth, what, rtol=5e-6, wrong=wrong | rounded(truth))


def few(accumulate: Callable) -> None:
    """Saved at once: what one micro-batch saves, whatever their number."""
    for rows in (2, 1):
        kept = []
        for case in (Case((5, 3, 6)[:rows], rows), Case((5, 3, 6, 2, 4, 7)[: 3 * rows], rows)):
            kept.append(accumulating.kept(accumulate, unsure_model(), *batch(case), case.rows))
        if not kept[1] < 1.5 * kept[0]:
            raise Wrong(
                "graphs-held",
                f"rows={rows}: with 3 micro-batches {kept[1]:,} bytes are saved for backward at once, with 1 it is "
                f"{kept[0]:,}: each micro-batch, of at most `rows` sequences, must go backward before the next one "
                "goes forward",
            )


def batch(case: Case) -> tuple[Tensor, Tensor]:
    """Random (tokens, targets), each (sequences, T), with the case's numbers of targets that are not IGNORE."""
    generator, size = torch.Generator().manual_seed(len(case.counts)), (len(case.counts), TINY.context)
    tokens, targets = torch.randint(TINY.vocab_size, (2, *size), generator=generator)
    for row, count in zip(targets, case.counts):
        row[-1] = 0  # which is a token as any other
        row[: TINY.context - count] = IGNORE  # as a prompt is
    return tokens, targets


def weightings(case: Case) -> Hints:
    """What common mistakes weigh the micro-batches' mean losses with."""
    n, k, total = case.parts, len(case.parts), sum(case.parts)
    sizes = [len(case.counts[i : i + case.rows]) for i in range(0, len(case.counts), case.rows)]
    none = [0.0] * k
    return {
        "mean-of-means": ("every micro-batch weighs the same; then a target token in a batch with few of them counts "
                          "for more", [1 / k] * k),
        "by-sequences": ("a micro-batch weighs by its sequences; it is its target tokens that count",
                         [size / len(case.counts) for size in sizes]),
        "all-positions": ("it is divided by all positions; those that are IGNORE are no target tokens",
                          [count / len(case.counts) / TINY.context for count in n]),
        "sum-of-means": ("the micro-batches' means are summed and never divided: several times too large", [1.0] * k),
        "never-divided": ("the losses are summed over the target tokens and never divided", [float(x) for x in n]),
        "only-last": ("only the last micro-batch is in it, as if gradients were cleared before each",
                      none[:-1] + [n[-1] / total]),
        "last-lost": ("the last micro-batch, which is smaller, is not in it",
                      [count / total for count in n[:-1]] + [0.0]),
        "last-left-out": ("the last micro-batch, which is smaller, is left out, here and in the number of targets",
                          [count / max(1, total - n[-1]) for count in n[:-1]] + [0.0]),
    }  # fmt: skip


def _call(accumulate: Callable, case: Case, filled: float | None = None) -> tuple[GPT, float, Gradients, Gradients]:
    """(the model before, loss, gradients before, gradients after)."""
    torch.manual_seed(sum(case.counts))
    model = unsure_model()
    before = {n: torch.full_like(p, filled).detach() for n, p in model.named_parameters()} if filled else {}
    said = accumulating.added(accumulate, copy.deepcopy(model), *batch(case), case.rows, filled)
    if not same((said["tokens"], said["targets"]), batch(case)):
        raise Wrong("changes-arguments", f"{case.text}: tokens or targets are changed; they must stay as they are")
    if not same(said["weights"], {name: p.detach() for name, p in model.named_parameters()}):
        raise Wrong("steps", f"{case.text}: the weights are changed; this function makes gradients, and no step")
    if not said["training"]:
        raise Wrong("other-mode", f"{case.text}: the model is left in evaluation mode; it was in training mode before")
    if said["frozen"]:
        raise Wrong("left-frozen", f"{case.text}: {said['frozen'][0]} takes no gradient any more; it did before")
    return model, said["loss"], before, said["gradients"]


def _split(case: Case) -> list[tuple[Tensor, Tensor]]:
    return list(zip(*(tensor.split(case.rows) for tensor in batch(case))))


def _wrong(reference: GPT, case: Case, before: Gradients, whole: Gradients) -> Hints:
    zero = {name: torch.zeros_like(gradient) for name, gradient in whole.items()}
    pieces = [gradients_of(reference, *part) if count else zero for part, count in zip(_split(case), case.parts)]
    kept = {name: before.get(name, 0) for name in whole}
    wrong = given(weightings(case), lambda shares: mix(pieces, shares))
    wrong = given(wrong, lambda made: {name: made[name] + kept[name] for name in made})
    last = {name: case.parts[-1] / sum(case.parts) * pieces[-1][name] for name in whole}
    return wrong | ({
        "cleared": ("what was in .grad is gone; it is added to, as backward() does", whole),
        "only-last": ("only the last micro-batch is in it, as if gradients were cleared before each", last),
    } if before else {})  # fmt: skip
