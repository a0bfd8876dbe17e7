"""Judging a training step that a student wrote: by the gradients that reach the optimizer, not by trained weights.

AdamW divides by the size of the gradient, so a loss 8 times too large changes the weights by almost nothing. Here the
optimizer is plain SGD, a hook copies the gradients as ``optimizer.step()`` begins, and the truth is the gradient of

    sum_i n_i * loss_i / sum_i n_i        n_i target tokens and mean loss_i in micro-batch i

taken by autograd in one go. The step is called three times: on a clean model, again at once, and on a model whose
gradients hold stale values. It runs where it lives (``probes.training``).

    gradients(step, counts)      what reaches the optimizer; counts: target tokens in each micro-batch
    returned(step, counts)       the loss that the step returns
    frees_graphs(step)           one micro-batch's graph is gone before the next one's forward
    trains(step)                 it lowers a small model's loss
    validation_fell(...)         of a model that was trained with it; the judge has its weights, and losses of its own

Left out: clipping, schedules and autocast, which the exercise does not ask for.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from minigpt import train
from minigpt.checks.closing import knows
from minigpt.checks.comparing import close, same, show
from minigpt.checks.fetching import fetched
from minigpt.checks.naming import Hints, given
from minigpt.checks.probes import training as asked
from minigpt.checks.probes import unless_wrong
from minigpt.checks.verdict import Wrong
from minigpt.data import Batch
from minigpt.model import GPT, IGNORE, GPTConfig
from minigpt.train import count_targets, evaluate

knows(__name__, train.train)
TINY = GPTConfig(n_layer=1, n_embd=16, n_head=2, context=12, vocab_size=24)
CALLS = ("the first call", "a second call", "a call on a model with stale gradients")
STALE = torch.tensor(1.0)
LEAK = "gradients from before the call leak into this step; clear them before the first backward"
MOVED = "the weights are changed by more than optimizer.step(), which is to be all that changes them"


class Call(NamedTuple):
    """One call of a step: what is told of it, and the truth: each micro-batch's gradient and loss, by itself."""

    which: str
    told: dict[str, Any]
    batches: list[Batch]
    parts: list[dict[str, Tensor]]
    losses: list[float]
    stale: dict[str, Tensor] | None  # the gradients that lie in the model before it, if nobody clears them


def gradients(step: Callable, counts: tuple[int, ...]) -> None:
    """``step(model, optimizer, micro_batches) -> float`` hands the optimizer the gradient of the mean loss."""
    for which, told, batches, parts, _, stale in _calls(step, counts):
        if len(told["seen"]) != 1:
            raise Wrong(
                "steps",
                f"{which}: optimizer.step() ran {len(told['seen'])} times over {len(batches)} micro-batches; "
                "gradients are summed over all of them, and then comes one step",
            )
        expected = mix(parts, _shares(batches))
        wrong = given(_mistakes(batches), partial(mix, parts))
        if stale:
            wrong["stale"] = (LEAK, {name: expected[name] + stale[name] for name in expected})
        norm = torch.stack([gradient.norm() for gradient in expected.values()]).norm()
        wrong["clipped"] = ("it is clipped to a norm of 1; nothing is to change it", mix([expected], [1 / norm]))
        what = f"{which}, the gradient at optimizer.step()"
        close(told["seen"][0], expected, what, rtol=1e-4, atol=2e-5, wrong=wrong)


def returned(step: Callable, counts: tuple[int, ...]) -> None:
    """It returns the mean loss, as a float."""
    for which, told, batches, _, losses, _ in _calls(step, counts):
        loss, what = told["loss"], f"{which}, the returned loss"
        if isinstance(loss, Tensor):
            raise Wrong(
                "loss-tensor", f"{which}: the loss is a tensor; return a plain float: .item() also lets go of the graph"
            )
        if not isinstance(loss, float):
            raise Wrong("wrong-type", f"{what}: {show(loss)} is of type {type(loss).__name__}; a float is asked for")
        right = _sum(losses, _shares(batches))
        wrong = given(_mistakes(batches), partial(_sum, losses))
        if loss == round(loss, 6) and abs(loss - right) < 0.5:
            wrong["rounded"] = (f"{loss:g} is rounded; round where you print, and return all digits", loss)
        close(loss, right, what, rtol=5e-6, atol=0, wrong=wrong)


def _calls(step: Callable, counts: tuple[int, ...]) -> Iterator[Call]:
    """Three calls of the step, which were made before the first truth is."""
    torch.manual_seed(len(counts))
    model = unsure_model()
    calls = [micro_batches(counts), micro_batches(counts[::-1]), micro_batches(counts)]
    said = asked.taken(step, *copy.deepcopy((model, calls)), STALE)
    if len(said) != len(calls):
        raise Wrong("broken-reply", f"of {len(calls)} calls {len(said)} are told of")
    stale = None
    for which, told, batches in zip(CALLS, said, calls):
        unless_wrong(told)
        if not same(told["batches"], batches):
            raise Wrong("changes-arguments", f"{which}: the micro-batches are changed; they must stay as they are")
        if told["training"] is not True:
            raise Wrong("other-mode", f"{which}: the model is left in evaluation mode; it was in training mode before")
        if told["frozen"]:
            raise Wrong("left-frozen", f"{which}: {told['frozen'][0]} takes no gradient any more; it did before")
        parts = [gradients_of(model, *batch) for batch in batches]
        if which == CALLS[-1]:
            stale = {name: STALE.expand_as(gradient) for name, gradient in parts[0].items()}
        yield Call(which, told, batches, parts, [evaluate(model, [batch]) for batch in batches], stale)
        stale = mix(parts, _shares(batches))
        _follow(model, stale, told["weights"], which)


def _follow(model: GPT, gradient: dict[str, Tensor], weights: dict[str, Tensor], which: str) -> None:
    """Gives the model the weights that the step left, if these are those that this gradient leads to."""
    before = dict(model.named_parameters())
    try:
        right = {name: before[name].detach() - asked.RATE * gradient[name] for name in before}
        close(weights, right, which, rtol=1e-4, atol=2e-5)
    except Wrong:
        raise Wrong("other-weights", f"{which}: {MOVED}") from None
    with torch.no_grad():
        for name, parameter in before.items():
            parameter.copy_(weights[name])


def unsure_model() -> GPT:
    """At its start a model is so unsure that all losses, and their errors, look alike: so its weights are larger."""
    model = GPT(TINY)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(5)
    return model


def micro_batches(counts: tuple[int, ...]) -> list[Batch]:
    """Random (tokens, targets), each (B, T), of several shapes, with these numbers of targets that are not IGNORE."""
    batches = []
    for i, count in enumerate(counts):
        tokens = torch.randint(TINY.vocab_size, (2 + i % 2, TINY.context - i % 3))  # (B, T)
        targets = torch.full_like(tokens, IGNORE)  # (B, T)
        chosen = torch.randperm(targets.numel())[:count]
        targets.view(-1)[chosen] = torch.randint(TINY.vocab_size, (count,))
        batches.append((tokens, targets))
    return batches


def validation_fell(model: nn.Module, start: nn.Module, batches, margin: float) -> tuple[float, float]:
    """``fell`` of a ``model`` that may live elsewhere: it is built as ``start`` is, and only its weights come here."""
    return fell(fetched(model, copy.deepcopy(start), "model"), start, batches, margin)


def fell(model: nn.Module, start: nn.Module, batches, margin: float) -> tuple[float, float]:
    """The loss of ``model`` on ``batches`` must be ``margin`` nats below that of ``start``; returns both."""
    before, after = evaluate(start, batches), evaluate(model, batches)
    if not after < before - margin:
        raise Wrong(
            "did-not-fall",
            f"the validation loss went from {before:.3f} to {after:.3f} nats per token; it must fall by at least "
            f"{margin:g}. Were all cells of the training run, in order, after the checks above had passed?",
        )
    return before, after


def trains(step: Callable) -> None:
    """Twenty calls with the same micro-batches lower the loss of a small model."""
    torch.manual_seed(0)
    model, batches = GPT(TINY), micro_batches((20, 25, 16))
    said = asked.taken(step, *copy.deepcopy((model, [batches] * 20)))
    before, told = evaluate(model, batches), unless_wrong(said[-1])
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(told["weights"][name])
    if not (after := evaluate(model, batches)) < before - 0.05:
        raise Wrong("does-not-train", f"20 calls of your step take the loss of a small model from {before:.3f} to "
                    f"{after:.3f} on the very batches that they see; it must fall")  # fmt: skip


def _shares(batches: list[Batch]) -> list[float]:
    """What each micro-batch's mean loss is weighed with."""
    n = [count_targets(targets) for _, targets in batches]
    return [count / sum(n) for count in n]


def _mistakes(batches: list[Batch]) -> Hints:
    """What each common mistake weighs the micro-batches' mean losses with."""
    n, sizes = [count_targets(targets) for _, targets in batches], [targets.numel() for _, targets in batches]
    k, total, last = len(n), sum(n), [0.0] * (len(n) - 1)
    return {
        "mean-of-means": ("every micro-batch weighs the same; then a target token in a short answer counts for more",
                          [1 / k] * k),
        "sum-of-means": ("the micro-batches' means are summed and never divided: several times too large", [1.0] * k),
        "never-divided": ("the losses are summed over the target tokens and never divided by their number",
                          [float(x) for x in n]),
        "all-positions": ("it is divided by all positions; those that are masked with IGNORE are no target tokens",
                          [x / sum(sizes) for x in n]),
        "by-size": ("every micro-batch weighs with all its positions; only those that are not IGNORE are target tokens",
                    [x / sum(sizes) for x in sizes]),
        "divided-twice": ("it is divided by the number of target tokens, and by that of micro-batches as well",
                          [x / total / k for x in n]),
        "only-last": ("only the last micro-batch is in it, as if zero_grad ran before each", last + [n[-1] / total]),
        "only-last-mean": ("only the last micro-batch's mean is in it", last + [1.0]),
        "only-first": ("only the first micro-batch is in it", [n[0] / total] + last),
    } if k > 1 else {}  # fmt: skip


def gradients_of(model: GPT, tokens: Tensor, targets: Tensor) -> dict[str, Tensor]:
    names, parameters = zip(*model.named_parameters())
    return dict(zip(names, torch.autograd.grad(model(tokens, targets), parameters)))


def mix(parts: list[dict[str, Tensor]], weights: list[float]) -> dict[str, Tensor]:
    return {
        name: torch.stack([weight * part[name] for weight, part in zip(weights, parts)]).sum(0) for name in parts[0]
    }


def _sum(losses: list[float], shares: list[float]) -> float:
    return sum(share * loss for share, loss in zip(shares, losses))


def frees_graphs(step: Callable) -> None:
    """With three micro-batches no more may be saved for backward at once than with the largest of them alone."""
    batches = micro_batches((6, 3, 9))
    said = asked.saved(step, unsure_model(), [[batch] for batch in batches] + [batches])
    *alone, together = map(unless_wrong, said)
    if len(alone) != len(batches):
        raise Wrong("broken-reply", f"of {len(batches) + 1} calls {len(said)} are told of")
    if not together < 1.5 * max(alone):
        raise Wrong(
            "graphs-held",
            f"with 3 micro-batches {together:,} bytes are saved for backward at once, with the largest of them alone "
            f"it is {max(alone):,}: each micro-batch's backward must run before the next one's forward, or "
            "accumulation saves no memory",
        )
