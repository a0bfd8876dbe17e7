"""Direct preference optimization (Rafailov et al. 2023, arXiv 2305.18290), by hand.

For a prompt x, a chosen answer c and a rejected one r, with the policy's probabilities pi and the reference's ref:

    loss = -log sigmoid( beta * [ (log pi(c|x) - log ref(c|x)) - (log pi(r|x) - log ref(r|x)) ] )

log pi(c|x) is the sum over the answer's tokens; the prompt's tokens count nothing, but both sequences have them. The
reference is the model before training. It takes no gradient, and there are three ways to have it:

    a frozen copy       copy.deepcopy(model), a second set of weights
    an idle adapter     the policy itself without its LoRA (``minigpt.lora.idle``): no weights at all
    precomputed         its log-probabilities for the whole data set, made before training: 8 bytes for each pair

``dpo_step`` runs the reference first: then its logits are gone when the policy's are made. trl runs it second, while
all that the policy has saved is there.

Left out: label smoothing, lengths as weights, and the other losses that trl has for pairs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minigpt.lora import idle
from minigpt.model import cross_entropy
from minigpt.values import is_number

BETA = 0.1  # trl's default


class Pairs(NamedTuple):
    """Pairs of answers as one batch: B chosen sequences, and below them the B rejected ones, in the same order."""

    tokens: Tensor  # (2B, T), int64
    targets: Tensor  # (2B, T), int64: the token that follows; IGNORE in the prompt and after the end


def log_probabilities(model: nn.Module, pairs: Pairs) -> Tensor:
    """log p(answer | prompt) of each sequence, (2B,), in nats."""
    losses = cross_entropy(model(pairs.tokens), pairs.targets, reduction="none")  # (2B T,)
    return -losses.view(pairs.targets.shape).sum(1)


def dpo_loss(policy: Tensor, reference: Tensor, beta: float = BETA) -> Tensor:
    """The mean loss over pairs, from log-probabilities (2B,) of the policy and of the reference. A scalar."""
    chosen, rejected = (policy - reference).chunk(2)  # (B,) each
    return -F.logsigmoid(beta * (chosen - rejected)).mean()


@torch.no_grad()
def of_reference(model: nn.Module, pairs: Pairs, reference: nn.Module | Tensor | None) -> Tensor:
    """The reference's log-probabilities, (2B,): of a frozen copy; as given; or, for None, of the model's own base.

    Raises ValueError for None and a model without adapters, for numbers that are not one of each sequence, and for
    sequences that are no pairs.
    """
    if not len(pairs.tokens) or len(pairs.tokens) % 2:
        raise ValueError(f"pairs has {len(pairs.tokens)} sequences; it must have an even number, half of them chosen")
    if isinstance(reference, Tensor):
        if reference.shape != pairs.tokens.shape[:1]:
            wanted = tuple(pairs.tokens.shape[:1])
            raise ValueError(f"reference has shape {tuple(reference.shape)}; it must be {wanted}, one of each sequence")
        return reference
    if reference is not None:
        return log_probabilities(reference, pairs)
    with idle(model):
        return log_probabilities(model, pairs)


def dpo_step(
    model: nn.Module, optimizer, pairs: Pairs, reference: nn.Module | Tensor | None = None, beta: float = BETA,
    mark: Callable[[str], None] = lambda phase: None,
) -> Tensor:  # fmt: skip
    """One step; returns the loss. Gradients are left in place. ``mark`` hears each phase begin: the meter's.

    Raises ValueError as ``of_reference``, and for a ``beta`` that is not above 0.
    """
    if not is_number(beta) or not 0 < beta < float("inf"):
        raise ValueError(f"beta is {beta!r}; it must be a number above 0")
    mark("forward")
    wanted = of_reference(model, pairs, reference)
    loss = dpo_loss(log_probabilities(model, pairs), wanted, beta)
    mark("backward")
    loss.backward()
    mark("step")
    optimizer.step()
    return loss
