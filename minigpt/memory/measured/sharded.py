"""The plan's sharding on a real model, in a process that has joined the others: torch's, or ``minigpt.sharding``.

ddp                    torch's DistributedDataParallel
zero1, zero2, zero3    minigpt.sharding's, by hand
fsdp2                  torch's fully_shard, on each block and on the whole
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from minigpt.memory.measured.optimizers import make_optimizer
from minigpt.memory.plan import TrainingPlan
from minigpt.sharding import shard
from minigpt.sharding.kinds import BY_HAND

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
NUMBER_BY_NUMBER = ("adamw", "kahan_adamw", "sgd", "sgd_momentum", "lion")  # what a flat shard can be updated with
OF_TORCH = NUMBER_BY_NUMBER[:-1]  # and a DTensor: bitsandbytes' operations know none


def share(module: nn.Module, plan: TrainingPlan) -> tuple[nn.Module, Any]:
    """The model to call, and its optimizer. Raises ValueError for what is not measured with ranks."""
    _check(plan)
    options = {}
    if plan.sharding == "ddp":
        options = {"gradient_as_bucket_view": plan.gradient_as_bucket_view}
    if plan.sharding == "fsdp2":
        options = {"reshard_after_forward": plan.reshard_after_forward, **_policies(plan)}
    return shard(module, plan.sharding, lambda params: make_optimizer(nn.ParameterList(params), plan), **options)


def _policies(plan: TrainingPlan) -> dict:
    """fully_shard's arguments for precision and offload."""
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy

    param, reduce = (DTYPES.get(name) for name in (plan.param_dtype, plan.reduce_dtype))
    policies: dict[str, Any] = {"mp_policy": MixedPrecisionPolicy(param_dtype=param, reduce_dtype=reduce)}
    if plan.shard_offload == "parameters":
        policies["offload_policy"] = CPUOffloadPolicy(pin_memory=torch.cuda.is_available())
    return policies


def _check(plan: TrainingPlan) -> None:
    """Raise ValueError for a plan that is not measured with ranks."""
    only = {"optimizer_in_backward": (False,), "step": ("steady", "first"), "float32_outputs": (False,)}
    only["loss"] = ("model", "shifted")  # others go round the model's own forward, where weights are gathered
    if plan.sharding == "fsdp2":
        only["optimizer"] = OF_TORCH
    if plan.sharding in BY_HAND:
        only |= {"optimizer": NUMBER_BY_NUMBER, "shard_offload": ("none",), "zero_grad": ("before_forward",)}
    for name, allowed in only.items():
        if getattr(plan, name) not in allowed:
            text = ", ".join(map(str, allowed))
            raise ValueError(f"{name} is {getattr(plan, name)!r}; measured with sharding {plan.sharding!r}: {text}")
