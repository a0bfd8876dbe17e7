"""measure(model, plan): run the plan's training step for real under the meter.

The model is built from its configuration (MiniGPT's code, or transformers' for a Hugging Face one), trained
for two steps, and the second is measured: the first has no optimizer state until its end. On fake tensors
(``device="fake"``) nothing is computed and no memory is used, so any size can be measured anywhere. There the first
step's gradients are made at once, without forward and backward; where the second shows that a parameter has none, both
steps are run in full.
"""

from __future__ import annotations

import contextlib
import inspect
from dataclasses import replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from minigpt.memory.buckets import StepMemory
from minigpt.memory.measured.building import build
from minigpt.memory.measured.fakes import fake_tensors
from minigpt.memory.measured.meter import MemoryMeter
from minigpt.memory.measured.models import base_of, half, vocabulary
from minigpt.memory.measured.optimizers import make_optimizer, resumed
from minigpt.memory.measured.record import recording
from minigpt.memory.plan import TrainingPlan
from minigpt.optim import InBackward
from minigpt.values import check_choice

DEVICES = ("fake", "cpu", "cuda")


class Batch(NamedTuple):
    """What a step reads, each (B, T) of int64."""

    tokens: Tensor
    targets: Tensor
    attention_mask: Tensor | None = None  # sequences "padded": the last token of the first sequence is padding
    position_ids: Tensor | None = None  # sequences "packed": two of them in every row

    def tensors(self) -> tuple[Tensor, ...]:
        return tuple(tensor for tensor in self if tensor is not None)


def measure(model, plan: TrainingPlan, device: str = "fake", record: str | None = None) -> StepMemory:
    """The memory of one training step of ``model``, metered.

    On a GPU a steady step runs once more, before that and without the meter, for the allocator's counters, ``card``;
    what it asked for is recorded into the file ``record``. Other steps do not come twice, and have none.

    ``model`` is a GPTConfig, a known name, or a Hugging Face configuration (object, dictionary or path of its file) of
    any model_type that transformers can build with a head over a vocabulary. Raises ValueError for a device that is not
    "fake", "cpu" or "cuda" or is not there, for a sequence, a target or a rank that the model has no room for, and for
    what the libraries refuse.
    """
    check_choice(DEVICES, device=device)
    if plan.sharding != "none":
        raise ValueError(f"sharding is {plan.sharding!r}; here one process runs, with sharding 'none'")
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device is 'cuda'; this machine has no such GPU: allowed here: fake, cpu")
    if device == "cuda" and plan.checkpointing == "offload":
        raise ValueError("checkpointing is 'offload'; on a GPU the meter would count what lies in the CPU's memory too")
    with fake_tensors(plan) if device == "fake" else contextlib.nullcontext():
        return measure_module(build(model, plan, device), plan, record)


def measure_module(module: nn.Module, plan: TrainingPlan, record: str | None = None) -> StepMemory:
    """As ``measure``, for a model that is built already; its weights are trained by two steps."""
    optimizer = make_optimizer(module, plan)
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    shortly = plan.step != "first" and only_state_is_left(trained, optimizer, plan)
    if shortly:
        for parameter in trained:
            parameter.grad = torch.empty_like(parameter, dtype=parameter.grad_dtype)
        optimizer.step()
    step = _measured(module, optimizer, plan, plan.step != "first" and not shortly, record)
    if shortly and any(parameter.grad is None for parameter in trained):  # and none in the first step either
        module.zero_grad()
        step = _measured(module, make_optimizer(module, plan), plan, run_first=True)
    return step


def only_state_is_left(trained: list[nn.Parameter], optimizer, plan: TrainingPlan) -> bool:
    """Whether all that a first step leaves behind is the optimizer's state, which no value has a part in."""
    fake = all(isinstance(parameter.data, FakeTensor) for parameter in trained)
    return fake and plan.zero_grad == "before_forward" and not isinstance(optimizer, InBackward)


def _measured(
    module: nn.Module, optimizer, plan: TrainingPlan, run_first: bool, record: str | None = None
) -> StepMemory:
    batch = make_batch(module, plan)
    if run_first:
        training_step(module, optimizer, batch, plan)
    if plan.step == "resumed":
        optimizer.zero_grad()
        optimizer = resumed(module, optimizer, plan)
    if plan.zero_grad == "before_forward":
        optimizer.zero_grad()
    card = None
    if plan.step == "steady" and batch.tokens.device.type == "cuda" and not isinstance(batch.tokens, FakeTensor):
        with recording(record) as seen:
            training_step(module, optimizer, batch, plan)
        card = seen.card
        if plan.zero_grad == "before_forward":
            optimizer.zero_grad()
    with MemoryMeter(module, optimizer, batch.tensors()) as meter:
        training_step(module, optimizer, batch, plan, meter.mark)
    return replace(meter.result(), card=card)


def make_batch(module: nn.Module, plan: TrainingPlan) -> Batch:
    """Random tokens of the plan's shape, and what tells padding or packing. Raises ValueError if it cannot be told."""
    device = next(module.parameters()).device
    shape, words = (plan.batch, plan.seq_len), vocabulary(base_of(module).config)
    tokens, targets = (torch.randint(0, words, shape, device=device) for _ in range(2))
    if plan.sequences == "plain":
        return Batch(tokens, targets)
    name = "attention_mask" if plan.sequences == "padded" else "position_ids"
    if name not in _parameters(module):
        raise ValueError(f"sequences is {plan.sequences!r}; this model takes no {name}: allowed with it: plain")
    if getattr(base_of(module).config, "is_encoder_decoder", False) and isinstance(tokens, FakeTensor):
        text = "an encoder and a decoder have a mask each, and fake tensors cannot tell them apart: allowed: cpu, cuda"
        raise ValueError(f"device is 'fake'; with sequences {plan.sequences!r} {text}")
    if plan.seq_len < 2:
        raise ValueError(f"seq_len is {plan.seq_len}; with sequences {plan.sequences!r} it must be at least 2")
    if plan.sequences == "padded":
        mask = torch.ones(shape, dtype=torch.int64, device=device)
        mask[0, -1] = 0
        return Batch(tokens, targets, attention_mask=mask)
    positions = torch.arange(plan.seq_len, device=device) % -(-plan.seq_len // 2)
    return Batch(tokens, targets, position_ids=positions.repeat(plan.batch, 1))


def training_step(module, optimizer, batch: Batch, plan: TrainingPlan, mark=lambda phase: None) -> None:
    """Forward, backward and step as the plan says; gradients are left in place."""
    device = batch.tokens.device.type
    if plan.zero_grad == "in_place":
        optimizer.zero_grad(set_to_none=False)
    if isinstance(optimizer, InBackward):
        optimizer.attach()
    held: object = None
    for i in range(plan.accumulation):
        mark("forward")
        with torch.autocast(device, half(plan)) if autocasts(plan) and not wraps(plan) else contextlib.nullcontext():
            loss, held = compute_loss(module, batch, plan)
        mark("backward")
        if plan.zero_grad == "before_backward" and i == 0:
            optimizer.zero_grad()
        loss.backward()
    mark("step")
    optimizer.step()
    if isinstance(optimizer, InBackward):
        optimizer.detach()
    del held


def autocasts(plan: TrainingPlan) -> bool:
    return plan.autocast_dtype is not None


def wraps(plan: TrainingPlan) -> bool:
    """Whether autocast is inside of the model, as accelerate puts it; other losses than these return no logits."""
    return plan.float32_outputs and autocasts(plan) and plan.loss in ("model", "shifted")


def wrapped(module: nn.Module, plan: TrainingPlan):
    """The model as accelerate's prepare_model makes it, for Trainer too; or as it is."""
    from accelerate.utils.operations import convert_outputs_to_fp32

    device = next(module.parameters()).device.type
    return convert_outputs_to_fp32(torch.autocast(device, half(plan))(module)) if wraps(plan) else module


def compute_loss(module, batch: Batch, plan: TrainingPlan):
    """The loss, and what the loop holds besides it: all outputs or nothing."""
    from minigpt.model import GPT

    if isinstance(base_of(module), GPT):
        return _minigpt_loss(module, batch, plan)
    known = _parameters(module)
    inputs = {name: tensor for name in Batch._fields[2:] if (tensor := getattr(batch, name)) is not None}
    if plan.use_cache and "use_cache" not in known:
        raise ValueError("use_cache is True; this model has no cache")
    if "use_cache" in known:
        inputs["use_cache"] = plan.use_cache
    if plan.loss in ("chunked", "fused", "trl"):
        return _headless_loss(module, batch, plan, inputs)
    targets, model = batch.targets, wrapped(module, plan)
    if plan.logits_to_keep:
        if "logits_to_keep" not in known:
            raise ValueError(f"logits_to_keep is {plan.logits_to_keep}; this model makes the logits of all tokens")
        inputs["logits_to_keep"] = plan.logits_to_keep
        targets = targets[:, -plan.logits_to_keep :]
    if plan.loss == "model":
        outputs = model(input_ids=batch.tokens, labels=targets, **inputs)
        loss = outputs.loss
    else:
        outputs = model(input_ids=batch.tokens, **inputs)
        loss = _shifted(outputs.logits, targets, plan)
    return loss, outputs if plan.holds == "outputs" else None


def _minigpt_loss(module, batch: Batch, plan: TrainingPlan):
    from minigpt.model import cross_entropy

    # and it has no cache to use
    for name, only in {"loss": ("model", "shifted"), "logits_to_keep": (0,), "float32_outputs": (False,)}.items():
        if getattr(plan, name) not in only:
            allowed = ", ".join(map(str, only))
            raise ValueError(f"{name} is {getattr(plan, name)!r}; allowed with MiniGPT: {allowed}")
    if plan.loss == "model" and plan.holds == "loss":
        return module(batch.tokens, batch.targets, upcast=plan.upcast), None
    logits = module(batch.tokens)
    if plan.loss == "model":
        loss = cross_entropy(logits, batch.targets, upcast=plan.upcast)
    else:
        loss = _shifted(logits, batch.targets, plan)
    return loss, logits if plan.holds == "outputs" else None


def _shifted(logits: Tensor, targets: Tensor, plan: TrainingPlan) -> Tensor:
    """A loop's own loss: a copy of all logits but the last token's, which ``upcast`` turns into float32 once more."""
    shifted = logits[:, :-1].contiguous()
    if plan.upcast:
        shifted = shifted.float()
    return F.cross_entropy(shifted.view(-1, shifted.shape[-1]), targets[:, 1:].reshape(-1))


def _headless_loss(module, batch: Batch, plan: TrainingPlan, inputs: dict):
    """A loss that takes the output head apart: the model without its head, then one of ``losses``."""
    from transformers import PreTrainedModel

    from minigpt.memory.measured import losses

    model = base_of(module)
    head = model.get_output_embeddings() if isinstance(model, PreTrainedModel) else None
    # torchtune's pieces go through the head itself, with its bias.
    plain = head is not None and (plan.loss == "chunked" or getattr(head, "bias", None) is None)
    if not isinstance(model, PreTrainedModel) or model.base_model is model or not plain:
        raise ValueError(f"loss is {plan.loss!r}; this model has no output head, without bias, to take apart")
    if plan.logits_to_keep:
        raise ValueError(f"logits_to_keep is {plan.logits_to_keep}; with loss {plan.loss!r} it must be 0")
    outputs = model.base_model(input_ids=batch.tokens, **inputs)
    hidden = outputs.last_hidden_state
    return getattr(losses, plan.loss)(hidden, head, batch.targets), outputs if plan.holds == "outputs" else None


def _parameters(module: nn.Module) -> set[str]:
    """The names that the model's own forward takes."""
    return set(inspect.signature(type(base_of(module)).forward).parameters)
