"""Judging a training step that a student wrote: by the gradients that reach the optimizer, not by trained weights.

AdamW divides by the size of the gradient, so a loss 8 times too large changes the weights by almost nothing. Here the
optimizer is plain SGD, a hook copies the gradients as ``optimizer.step()`` begins, and the truth is the gradient of

    sum_i n_i * loss_i / sum_i n_i        n_i target tokens and mean loss_i in micro-batch i

taken by autograd in one go. The step is called three times: on a clean model, again at once, and on a model whose
gradients hold stale values. Then the meter looks whether one micro-batch's graph is gone before the next one's forward.

Left out: clipping, schedules and autocast, which the exercise does not ask for.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor

from minigpt.checks.calling import call
from minigpt.checks.comparing import close, same, show
from minigpt.data import Batch
from minigpt.memory.measured.meter import MemoryMeter
from minigpt.model import GPT, IGNORE, GPTConfig
from minigpt.train import count_targets, evaluate

TINY = GPTConfig(n_layer=1, n_embd=16, n_head=2, context=12, vocab_size=24)
LEAK = "gradients from before the call leak into this step; clear them before the first backward"


def training_step(step: Callable, counts: tuple[int, ...] = (11, 2, 5), seed: int = 0) -> None:
    """``step(model, optimizer, micro_batches) -> float``, on micro-batches with ``counts`` target tokens each."""
    torch.manual_seed(seed)
    model = GPT(TINY)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(5)  # at its start the model is so unsure that all losses, and their errors, look alike
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    _one_call(step, model, optimizer, micro_batches(counts), "the first call")
    _one_call(step, model, optimizer, micro_batches(counts[::-1]), "a second call")
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    _one_call(step, model, optimizer, micro_batches(counts), "a call on a model with stale gradients")
    _frees_graphs(step, model, optimizer)


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
        raise AssertionError(
            f"the validation loss went from {before:.3f} to {after:.3f} nats per token; it must fall by at least "
            f"{margin:g}. Was the model trained by your step, to its last cell?"
        )
    return before, after


def _one_call(step: Callable, model: GPT, optimizer, batches: list[Batch], which: str) -> None:
    reference, given = copy.deepcopy(model), copy.deepcopy(batches)
    stale = {name: torch.zeros_like(p) if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}
    seen: list[dict[str, Tensor | None]] = []
    hook = optimizer.register_step_pre_hook(
        lambda *_: seen.append({n: None if p.grad is None else p.grad.clone() for n, p in model.named_parameters()})
    )
    try:
        loss = call(step, model, optimizer, batches, twice=False, untouched=False)
    finally:
        hook.remove()
    if not same(batches, given):
        raise AssertionError(f"{which}: the micro-batches are changed; they must stay as they are")
    if not model.training or not all(p.requires_grad for p in model.parameters()):
        raise AssertionError(f"{which}: the model is left in another mode, or with weights that take no gradient")
    if len(seen) != 1:
        raise AssertionError(f"{which}: optimizer.step() ran {len(seen)} times over {len(batches)} micro-batches; "
                             "gradients are summed over all of them, and then comes one step")  # fmt: skip
    _compare(seen[0], loss, reference, batches, stale, which)


def _compare(got, loss, reference: GPT, batches: list[Batch], stale, which: str) -> None:
    n = [count_targets(targets) for _, targets in batches]
    shares = _mistakes(n, [targets.numel() for _, targets in batches])
    parts = [_gradients(reference, *batch) for batch in batches]
    true = [count / sum(n) for count in n]
    gradients = {mistake: _mix(parts, weights) for mistake, weights in shares.items()}
    expected = _mix(parts, true)
    gradients[LEAK] = {name: expected[name] + stale[name] for name in expected}
    close(got, expected, f"{which}, the gradient at optimizer.step()", rtol=1e-4, atol=2e-5, wrong=gradients)

    losses = [evaluate(reference, [batch]) for batch in batches]
    if isinstance(loss, Tensor):
        raise AssertionError(f"{which}: the loss is a tensor; return a plain float: .item() also lets go of the graph")
    hints = {mistake: sum(w * x for w, x in zip(weights, losses)) for mistake, weights in shares.items()}
    if not isinstance(loss, float):
        raise AssertionError(f"{which}: the loss is {show(loss)}, a {type(loss).__name__}; a float is asked for")
    close(loss, sum(w * x for w, x in zip(true, losses)), f"{which}, the returned loss", rtol=1e-4, wrong=hints)


def _mistakes(n: list[int], sizes: list[int]) -> dict[str, list[float]]:
    """What each common mistake weighs the micro-batches' mean losses with."""
    k, total, last = len(n), sum(n), [0.0] * (len(n) - 1)
    return {
        "the mean of the micro-batches' means: a target token in a short answer then counts for more": [1 / k] * k,
        "the micro-batches' means are summed and never divided: several times too large": [1.0] * k,
        "the losses are summed over the target tokens and never divided by their number": [float(x) for x in n],
        "divided by all positions; those that are masked with IGNORE are no target tokens": [
            x / sum(sizes) for x in n
        ],
        "divided by the number of target tokens and then by the number of micro-batches as well": [
            x / total / k for x in n
        ],
        "only the last micro-batch is in it, as if zero_grad ran before each": last + [n[-1] / total],
        "only the last micro-batch's mean is in it": last + [1.0],
        "only the first micro-batch is in it": [n[0] / total] + last,
    } if k > 1 else {}  # fmt: skip


def _gradients(model: GPT, tokens: Tensor, targets: Tensor) -> dict[str, Tensor]:
    names, parameters = zip(*model.named_parameters())
    return dict(zip(names, torch.autograd.grad(model(tokens, targets), parameters)))


def _mix(parts: list[dict[str, Tensor]], weights: list[float]) -> dict[str, Tensor]:
    return {name: sum(weight * part[name] for weight, part in zip(weights, parts)) for name in parts[0]}


def _frees_graphs(step: Callable, model: GPT, optimizer) -> None:
    """With three micro-batches no more may be saved for backward at once than with one."""
    saved = []
    for counts in ((6,), (6, 3, 9)):
        batches = micro_batches(counts)
        with MemoryMeter(model, optimizer, [tensor for batch in batches for tensor in batch]) as meter:
            call(step, model, optimizer, batches, twice=False, untouched=False)
        saved.append(meter.result().ledger.activations)
    if not saved[1] < 1.5 * saved[0]:
        raise AssertionError(
            f"with 3 micro-batches {saved[1]:,} bytes are saved for backward at once, with 1 it is {saved[0]:,}: each "
            "micro-batch's backward must run before the next one's forward, or accumulation saves no memory"
        )
