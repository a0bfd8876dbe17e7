"""measure(model, plan): run the plan's training step for real under the meter.

The model is built from its configuration (MiniGPT's code, or transformers' for a Hugging Face one), trained
for two steps, and the second is measured: the first has no optimizer state until its end. On fake tensors
(``device="fake"``) nothing is computed and no memory is used, so any size can be measured anywhere.
"""

from __future__ import annotations

import contextlib
from unittest import mock

import torch

from minigpt.memory.buckets import StepMemory
from minigpt.memory.families import Architecture
from minigpt.memory.measured.building import build, make_optimizer
from minigpt.memory.measured.meter import MemoryMeter
from minigpt.memory.plan import TrainingPlan, check_fit
from minigpt.precision import autocast
from minigpt.values import check_choice

DEVICES = ("fake", "cpu", "cuda")


def measure(model, plan: TrainingPlan, device: str = "fake") -> StepMemory:
    """The memory of one training step of ``model`` (a GPTConfig or transformers configuration), metered.

    Raises ValueError for a device that is not "fake", "cpu" or "cuda" or is not there, and for a sequence, a target or
    a rank that the model has no room for.
    """
    check_choice(DEVICES, device=device)
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device is 'cuda'; this machine has no such GPU: allowed here: fake, cpu")
    check_fit(Architecture.of(model), plan)
    with _tensors(device):
        return measure_module(build(model, plan, device), plan)


def measure_module(module: torch.nn.Module, plan: TrainingPlan) -> StepMemory:
    """As ``measure``, for a model that is built already; its weights are trained by two steps."""
    optimizer = make_optimizer(module, plan)
    vocab_size = module.config.vocab_size
    device = next(module.parameters()).device
    tokens = torch.randint(0, vocab_size, (plan.batch, plan.seq_len), device=device)
    targets = torch.randint(0, vocab_size, (plan.batch, plan.seq_len), device=device)
    training_step(module, optimizer, tokens, targets, plan)
    optimizer.zero_grad()
    with MemoryMeter(module, optimizer, (tokens, targets)) as meter:
        training_step(module, optimizer, tokens, targets, plan, meter.mark)
    return meter.result()


def training_step(module, optimizer, tokens, targets, plan: TrainingPlan, mark=lambda phase: None) -> None:
    """Forward, backward and step as the plan says; gradients are left in place."""
    for _ in range(plan.accumulation):
        mark("forward")
        with autocast(plan.precision, tokens.device):
            loss, held = compute_loss(module, tokens, targets, plan)
        mark("backward")
        loss.backward()
    mark("step")
    optimizer.step()
    del held


def compute_loss(module, tokens, targets, plan: TrainingPlan):
    """The loss, and what the loop holds besides it: all outputs or nothing."""
    from minigpt.model import GPT, cross_entropy

    if isinstance(module, GPT):
        if plan.holds == "loss":
            return module(tokens, targets, upcast=plan.upcast), None
        logits = module(tokens)
        return cross_entropy(logits, targets, upcast=plan.upcast), logits
    outputs = module(input_ids=tokens, labels=targets, use_cache=plan.use_cache)
    return outputs.loss, outputs if plan.holds == "outputs" else None


@contextlib.contextmanager
def _tensors(device: str):
    """Fake tensors if they are asked for.

    Fake tensors have no values, so transformers cannot see that a batch is not several sequences packed
    into one, and would build a mask for that case. It is told here.
    """
    if device != "fake":
        yield
        return
    from torch._subclasses.fake_tensor import FakeTensorMode
    from transformers import masking_utils

    with FakeTensorMode(), mock.patch.object(masking_utils, "find_packed_sequence_indices", lambda _: None):
        yield
