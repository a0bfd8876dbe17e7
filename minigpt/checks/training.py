"""Judging a training step that a student wrote: by the gradients that reach the optimizer, not by trained weights.

AdamW divides by the size of the gradient, so a loss 8 times too large changes the weights by almost nothing. Here the
optimizer is plain SGD, a hook copies the gradients as ``optimizer.step()`` begins, and the truth is the gradient of

    sum_i n_i * loss_i / sum_i n_i        n_i target tokens and mean loss_i in micro-batch i

taken by autograd in one go. The step is called three times: on a clean model, again at once, and on a model whose
gradients hold stale values.

    gradients(step, counts)      what reaches the optimizer; counts: target tokens in each micro-batch
    returned(step, counts)       the loss that the step returns
    frees_graphs(step)           by the meter: one micro-batch's graph is gone before the next one's forward
    validation_fell(...)         of a model that was trained with it

Left out: clipping, schedules and autocast, which the exercise does not ask for.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from minigpt import train
from minigpt.checks.closing import asked_first, by_hand, knows
from minigpt.checks.comparing import close, same, show
from minigpt.checks.naming import Hints, given
from minigpt.checks.verdict import Wrong
from minigpt.data import Batch
from minigpt.memory.measured.meter import MemoryMeter
from minigpt.model import GPT, IGNORE, GPTConfig
from minigpt.train import count_targets, evaluate

knows(__name__, train.train)
TINY = GPTConfig(n_layer=1, n_embd=16, n_head=2, context=12, vocab_size=24)
LEAK = "gradients from before the call leak into this step; clear them before the first backward"


def gradients(step: Callable, counts: tuple[int, ...]) -> None:
    """``step(model, optimizer, micro_batches) -> float`` hands the optimizer the gradient of the mean loss."""
    for which, seen, _, reference, batches, stale in asked_first(_calls(step, counts)):
        if len(seen) != 1:
            raise Wrong(
                "steps",
                f"{which}: optimizer.step() ran {len(seen)} times over {len(batches)} micro-batches; "
                "gradients are summed over all of them, and then comes one step",
            )
        parts = [gradients_of(reference, *batch) for batch in batches]
        expected = mix(parts, _shares(batches))
        wrong = given(_mistakes(batches), partial(mix, parts))
        wrong["stale"] = (LEAK, {name: expected[name] + stale[name] for name in expected})
        close(seen[0], expected, f"{which}, the gradient at optimizer.step()", rtol=1e-4, atol=2e-5, wrong=wrong)


def returned(step: Callable, counts: tuple[int, ...]) -> None:
    """It returns the mean loss, as a float."""
    for which, _, loss, reference, batches, _ in asked_first(_calls(step, counts)):
        what = f"{which}, the returned loss"
        if isinstance(loss, Tensor):
            raise Wrong(
                "loss-tensor", f"{which}: the loss is a tensor; return a plain float: .item() also lets go of the graph"
            )
        if not isinstance(loss, float):
            raise Wrong("wrong-type", f"{what}: {show(loss)} is of type {type(loss).__name__}; a float is asked for")
        losses = [evaluate(reference, [batch]) for batch in batches]
        wrong = given(_mistakes(batches), partial(_sum, losses))
        close(loss, _sum(losses, _shares(batches)), what, rtol=1e-4, wrong=wrong)


def _calls(step: Callable, counts: tuple[int, ...]):
    """Three calls of the step, to be made: see ``_one_call``."""
    torch.manual_seed(len(counts))
    model = unsure_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    yield partial(_one_call, step, model, optimizer, micro_batches(counts), "the first call")
    yield partial(_one_call, step, model, optimizer, micro_batches(counts[::-1]), "a second call")
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    yield partial(_one_call, step, model, optimizer, micro_batches(counts), "a call on a model with stale gradients")


def unsure_model() -> GPT:
    """At its start a model is so unsure that all losses, and their errors, look alike: so its weights are larger."""
    model = GPT(TINY)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(5)
    return model


def micro_batches(counts: tuple[int, ...]) -> list[Batch]:
    """Random (tokens, targets), each (2, T), with the given numbers of targets that are not IGNORE."""
    batches = []
    for count in counts:
        tokens = torch.randint(TINY.vocab_size, (2, TINY.context))  # (2, T)
        targets = torch.full_like(tokens, IGNORE)  # (2, T)
        chosen = torch.randperm(targets.numel())[:count]
        targets.view(-1)[chosen] = torch.randint(TINY.vocab_size, (count,))
        batches.append((tokens, targets))
    return batches


def validation_fell(model: GPT, start: GPT, batches, margin: float) -> tuple[float, float]:
    """The loss of ``model`` on ``batches`` must be ``margin`` nats below that of ``start``; returns both."""
    before, after = evaluate(start, batches), evaluate(model, batches)
    if not after < before - margin:
        raise Wrong(
            "did-not-fall",
            f"the validation loss went from {before:.3f} to {after:.3f} nats per token; it must fall by at least "
            f"{margin:g}. Were all cells of the training run, in order, after the checks above had passed?",
        )
    return before, after


def _one_call(step: Callable, model: GPT, optimizer, batches: list[Batch], which: str):
    """(which, gradients that the optimizer saw, loss, the model before, micro-batches, gradients before)."""
    reference, before = copy.deepcopy(model), copy.deepcopy(batches)
    stale = {name: torch.zeros_like(p) if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}
    seen: list[dict[str, Tensor | None]] = []
    hook = optimizer.register_step_pre_hook(
        lambda *_: seen.append({n: None if p.grad is None else p.grad.clone() for n, p in model.named_parameters()})
    )
    try:
        loss = by_hand(step, model, optimizer, batches, building=True, twice=False, untouched=False)
    finally:
        hook.remove()
    if not same(batches, before):
        raise Wrong("changes-arguments", f"{which}: the micro-batches are changed; they must stay as they are")
    if not model.training:
        raise Wrong("other-mode", f"{which}: the model is left in evaluation mode; it was in training mode before")
    if frozen := [name for name, parameter in model.named_parameters() if not parameter.requires_grad]:
        raise Wrong("left-frozen", f"{which}: {frozen[0]} takes no gradient any more; it did before")
    return which, seen, loss, reference, batches, stale


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
    """With three micro-batches no more may be saved for backward at once than with one."""
    model, saved = unsure_model(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for counts in ((6,), (6, 3, 9)):
        batches = micro_batches(counts)
        with MemoryMeter(model, optimizer, tuple(tensor for batch in batches for tensor in batch)) as meter:
            by_hand(step, model, optimizer, batches, building=True, twice=False, untouched=False)
        saved.append(meter.result().ledger.activations)
    if not saved[1] < 1.5 * saved[0]:
        raise Wrong(
            "graphs-held",
            f"with 3 micro-batches {saved[1]:,} bytes are saved for backward at once, with 1 it is {saved[0]:,}: each "
            "micro-batch's backward must run before the next one's forward, or accumulation saves no memory",
        )
