"""measure_evaluation(model, plan, samples, batch): the evaluation that transformers' Trainer makes between two steps.

``Trainer.evaluation_loop`` (transformers 5.17, ``trainer.py``) keeps the logits of the whole set on the device to the
end, unless ``eval_accumulation_steps`` sends them away or ``prediction_loss_only`` drops them: each batch's logits are
concatenated to those before (``EvalLoopContainer``), so old and new are there at once. Under autocast accelerate turns
all outputs into float32 first. The optimizer's state stays all the time; gradients are gone.

A set of 1,000 times 512 tokens with 30,522 words is 62.5 GB of float32 logits, and twice that while the last batch is
joined to it.
"""

from __future__ import annotations

import contextlib

import torch
from torch import nn

from minigpt.memory.buckets import StepMemory
from minigpt.memory.evaluation import Evaluation
from minigpt.memory.measured.building import build
from minigpt.memory.measured.fakes import fake_tensors
from minigpt.memory.measured.meter import MemoryMeter
from minigpt.memory.measured.models import half
from minigpt.memory.measured.optimizers import make_optimizer
from minigpt.memory.measured.step import DEVICES, Batch, make_batch, training_step
from minigpt.memory.plan import TrainingPlan
from minigpt.values import check_choice


def measure_evaluation(
    model,
    plan: TrainingPlan,
    samples: int,
    batch: int = 8,
    *,
    prediction_loss_only: bool = False,
    eval_accumulation_steps: int | None = None,
    device: str = "fake",
) -> StepMemory:
    """The memory of evaluating ``samples`` sequences of ``plan.seq_len``, ``batch`` at a time, during a training.

    The last three are Trainer's arguments and have its defaults; ``batch`` is ``per_device_eval_batch_size``. The one
    phase is "evaluation". Raises ValueError for a value that is not allowed, and for MiniGPT, which Trainer cannot run.
    """
    check_choice(DEVICES, device=device)
    Evaluation(samples, batch, prediction_loss_only, eval_accumulation_steps).check(plan)
    with fake_tensors(plan) if device == "fake" else contextlib.nullcontext():
        module = build(model, plan, device)
        if not hasattr(module, "get_output_embeddings"):
            raise ValueError("the model is MiniGPT; transformers' Trainer evaluates Hugging Face models only")
        optimizer, trained = make_optimizer(module, plan), make_batch(module, plan)
        training_step(module, optimizer, trained, plan)
        optimizer.zero_grad()
        module.eval()
        for layer in module.modules():  # bitsandbytes would pack 4-bit weights for some CPUs' own kernel, for good
            vars(layer)["support_avx512bf16_for_cpu"] = False
        sizes = [min(batch, samples - done) for done in range(0, samples, batch)]
        with MemoryMeter(module, optimizer) as meter:
            meter.mark("evaluation")
            _loop(module, plan, sizes, prediction_loss_only, eval_accumulation_steps)
        return meter.result()


def _loop(module: nn.Module, plan: TrainingPlan, sizes: list[int], loss_only: bool, every: int | None) -> None:
    """Trainer.evaluation_loop; as there, a batch's own tensors live until the next one's take their names."""
    from transformers.trainer_pt_utils import EvalLoopContainer

    losses, predictions, labels = (EvalLoopContainer(True, padding_index=-100) for _ in range(3))
    for count, size in enumerate(sizes, start=1):
        inputs = make_batch(module, TrainingPlan(**{**vars(plan), "batch": size}))
        loss, logits = _predict(module, plan, inputs)
        losses.add(loss.repeat(size))
        if not loss_only:
            predictions.add(logits)
            labels.add(inputs.targets)
        else:
            del logits
        if every is not None and count % every == 0:
            for container in (losses, predictions, labels):
                container.tensors = None  # to_cpu_and_numpy: off the device
            del loss, inputs
            logits = None


@torch.no_grad()
def _predict(module: nn.Module, plan: TrainingPlan, inputs: Batch):
    """Trainer.prediction_step: the loss and the logits, in float32 where accelerate has wrapped the model."""
    from accelerate.utils.operations import convert_to_fp32

    enabled = plan.autocast or plan.regime.autocast is not None
    masks = {name: tensor for name in Batch._fields[2:] if (tensor := getattr(inputs, name)) is not None}
    with torch.autocast(inputs.tokens.device.type, half(plan), enabled=enabled):
        outputs = module(input_ids=inputs.tokens, labels=inputs.targets, use_cache=plan.use_cache, **masks)
    if enabled:
        outputs = convert_to_fp32(outputs)
    return outputs.loss.detach().mean(), outputs.logits.detach()
