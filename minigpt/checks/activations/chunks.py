"""Judging a cross-entropy in chunks that a student wrote; the truth is torch's on all logits, and the meter.

gradients(Chunked, case)      ``Chunked.apply(hidden, weight, targets, chunk)``: the loss and both gradients
never_whole(Chunked, case)    by what it makes: ``chunk`` tokens' logits at a time, and little that waits
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from minigpt.checks.activations import asking  # noqa: F401  closes the book
from minigpt.checks.calling import explained
from minigpt.checks.closing import knows
from minigpt.checks.comparing import close, same, show
from minigpt.checks.naming import Hints, given
from minigpt.checks.probes import functions
from minigpt.checks.verdict import Wrong
from minigpt.model import IGNORE

knows(__name__)
HINTS = {
    "returned an incorrect number of gradients": "backward returns one for each argument of forward: hidden, weight, "
    "targets, chunk; None for the last two",
    "does not require grad": "Inside of forward nothing is recorded: the gradient of the logits is written by hand",
    "out of bounds": "A target of IGNORE, -100, is no row of the logits",
    "index -100": "A target of IGNORE, -100, is no row of the logits",
}


class Case(NamedTuple):
    """``tokens`` of which some targets are IGNORE, ``words``, the width, and tokens in a chunk."""

    tokens: int
    words: int
    width: int
    chunk: int
    ignored: tuple[int, ...] = ()  # positions
    size: float = 1.0  # of the hidden states: large ones have logits whose exp overflows
    turned: bool = False  # hidden and weight are transposes of what lies in memory

    @property
    def text(self) -> str:
        masked = f", {len(self.ignored)} of them IGNORE" if self.ignored else ""
        large = ", large logits" if self.size > 1 else ""
        turned = ", hidden and weight not contiguous" if self.turned else ""
        return f"{self.tokens} tokens{masked}, {self.words} words, chunks of {self.chunk}{large}{turned}"


def gradients(chunked: Any, case: Case) -> None:
    hidden, weight, targets = made(case)
    loss, [dh, dw], inputs = _ask(chunked, case)
    if not same(inputs, [*made(case)]):
        raise Wrong("changes-arguments", f"{case.text}: hidden, weight or targets are changed; they must stay as they "
                                         "are: the head is the model's own, and targets serve once more")  # fmt: skip
    h, w = hidden.double().requires_grad_(), weight.double().requires_grad_()
    truth = F.cross_entropy(h @ w.T, targets, ignore_index=IGNORE)
    right = torch.autograd.grad(3 * truth, (h, w))
    pieces = _pieces(hidden, weight, targets, case.chunk)
    wrong = given(_weightings(case, targets), lambda shares: _mix(shares, pieces))
    if 0 in [count for count, *_ in pieces] and not (loss - loss == 0).item():
        raise Wrong("no-targets", f"{case.text}: the loss is NaN. One chunk has no target token, so its mean is 0 / 0")
    if case.size > 1 and not (loss - loss == 0).item():
        raise Wrong("overflows", f"{case.text}: the loss is {loss.item()}: exp of a large logit is infinite; logsumexp "
                                 "and log_softmax take the largest out first")  # fmt: skip
    hints = {id: (text, sums[0]) for id, (text, sums) in wrong.items()}
    close(loss, truth.detach(), f"{case.text}: the loss", rtol=1e-5, atol=1e-6, wrong=hints | rounded(truth.item()))
    bare = _mix([1] * len(pieces), _softmaxes(hidden, weight, targets, case.chunk))
    for place, (name, mine) in enumerate((("hidden", dh), ("weight", dw)), start=1):
        if mine is None:
            raise Wrong("no-gradient", f"{case.text}: {name} gets no gradient")
        hints = {id: (text, 3 * sums[place]) for id, (text, sums) in wrong.items()} | {
            "not-scaled": ("backward takes no notice of the gradient that it is given", right[place - 1] / 3),
            "no-target": ("the 1 at the target is not taken from the softmax", 3 * bare[place]),
        }
        _near(mine, right[place - 1], f"{case.text}: the gradient of {name}", hints)


def never_whole(chunked: Any, case: Case) -> None:
    said = functions.chunked_makes(chunked, *made(case), case.chunk)
    whole, few = 4 * case.tokens * case.words, 4 * (case.tokens + case.words) * case.width
    if not said["function"] or not said["largest"] < whole:
        raise Wrong(
            "logits-whole",
            f"{case.text}: a tensor of {said.get('largest', 0):,} bytes is made; all logits have {whole:,}, and are "
            "never to be there at once",
        )
    largest = max(4 * case.chunk * case.words, 4 * (case.tokens + case.words) * case.width)
    if not said["largest"] <= 2 * largest:
        raise Wrong(
            "other-chunks",
            f"{case.text}: a tensor of {said['largest']:,} bytes is made, and the logits of a chunk have "
            f"{4 * case.chunk * case.words:,}: take `chunk` tokens at a time, as many as it says",
        )
    if not said["waits"] < 1.5 * few:
        raise Wrong(
            "pieces-kept",
            f"{case.text}: {said['waits']:,} bytes wait for backward, where all logits have {whole:,}; the two "
            f"gradients are {few:,}",
        )
    if not said["peak"] < whole / 2 + 2 * few:
        raise Wrong(
            "chunks-held",
            f"{case.text}: {said['peak']:,} bytes are there at once, where all logits have {whole:,}: a chunk must be "
            "gone before the next one is made",
        )


def made(case: Case) -> tuple[Tensor, Tensor, Tensor]:
    """Random hidden (tokens, width) and weight (words, width), so large that losses differ; targets (tokens,)."""
    generator = torch.Generator().manual_seed(case.tokens)
    hidden, weight = (torch.randn(n, case.width, generator=generator) for n in (case.tokens, case.words))
    if case.turned:
        hidden, weight = (tensor.T.contiguous().T for tensor in (hidden, weight))
    hidden *= case.size
    targets = torch.randint(case.words, (case.tokens,), generator=generator)
    targets[list(case.ignored)] = IGNORE
    return hidden, weight, targets


def _ask(chunked: Any, case: Case) -> tuple[Tensor, list, list]:
    """(loss, the gradients of 3 times it by hidden and weight, the inputs afterwards)."""
    try:
        said = functions.chunked(chunked, *made(case), case.chunk)
    except Wrong as verdict:
        raise explained(verdict, HINTS) from verdict.__cause__
    if not said["function"]:
        raise Wrong("wrong-type", "the answer is no class that is a torch.autograd.Function")
    if not isinstance(said["loss"], Tensor):
        raise Wrong("loss-float", f"forward returns {show(said['loss'])}; autograd asks for a tensor, without .item()")
    return said["loss"], said["gradients"], said["inputs"]


def rounded(truth: float) -> Hints:
    """What a loss is that was rounded, as for a table."""
    return {f"rounded-{n}": (f"it is rounded to {n} decimals; round what is shown, not what is returned",
                             round(truth, n)) for n in (4, 3, 2, 1, 0)}  # fmt: skip


def _near(mine: Tensor, truth: Tensor, what: str, wrong: Hints) -> None:
    close(mine, truth.detach(), what, rtol=1e-4, atol=1e-5, wrong=wrong)


# ---------------------------------------------------------------- mistakes

Sums = list[Tensor]  # of a chunk or of all: the loss, and the gradients of hidden and weight


def _pieces(hidden: Tensor, weight: Tensor, targets: Tensor, chunk: int) -> list[tuple[int, Sums]]:
    """For each chunk its targets, and what it adds to the sums over target tokens."""
    pieces = []
    h, w = hidden.double().requires_grad_(), weight.double().requires_grad_()
    for rows in torch.arange(len(targets)).split(chunk):
        loss = F.cross_entropy(h[rows] @ w.T, targets[rows], ignore_index=IGNORE, reduction="sum")
        pieces.append((int((targets[rows] != IGNORE).sum()), [loss.detach(), *torch.autograd.grad(loss, (h, w))]))
    return pieces


def _softmaxes(hidden: Tensor, weight: Tensor, targets: Tensor, chunk: int) -> list[tuple[int, Sums]]:
    """The same, where the softmax alone is the gradient of the logits, divided by all targets."""
    pieces, n = [], int((targets != IGNORE).sum())
    for rows in torch.arange(len(targets)).split(chunk):
        dz = (hidden[rows] @ weight.T).double().softmax(-1) * (targets[rows] != IGNORE)[:, None] / n
        dh = torch.zeros_like(hidden).double()
        dh[rows] = dz @ weight.double()
        pieces.append((0, [torch.zeros(()), dh, dz.T @ hidden[rows].double()]))
    return pieces


def _weightings(case: Case, targets: Tensor) -> Hints:
    """What common mistakes weigh the chunks' sums with."""
    n = [int((part != IGNORE).sum()) for part in targets.split(case.chunk)]
    k, total = len(n), sum(n)
    return {
        "mean-of-means": ("the mean of the chunks' means is taken; a chunk with few targets then counts for more",
                          [1 / max(1, count) / k for count in n]),
        "sum-of-means": ("the chunks' means are summed", [1 / max(1, count) for count in n]),
        "all-positions": ("it is divided by all tokens; those that are IGNORE are no targets",
                          [1 / case.tokens] * k),
        "never-divided": ("it is the sum over the targets; the mean is asked for", [1.0] * k),
        "by-chunk": ("it is divided by the chunk's size and the number of chunks; the last chunk may be short",
                     [1 / case.chunk / k] * k),
        "only-last": ("only the last chunk is in it", [0.0] * (k - 1) + [1 / total]),
        "last-lost": ("the last chunk, which is short, is not in it", [1 / total] * (k - 1) + [0.0]),
    }  # fmt: skip


def _mix(shares: list[float], pieces: list[tuple[int, Sums]]) -> Sums:
    return [torch.stack([share * sums[i] for share, (_, sums) in zip(shares, pieces)]).sum(0) for i in range(3)]
