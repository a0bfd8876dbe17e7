"""DeepSpeed's JSON, for ``deepspeed.initialize(config=...)`` or ``TrainingArguments(deepspeed=...)``.

    plan                                JSON
    sharding="zero1", 2, 3              zero_optimization.stage
    shard_offload="optimizer"           zero_optimization.offload_optimizer: the CPU
    shard_offload="parameters"          offload_optimizer and offload_param; with stages 1 and 2 the second would pass
                                        in silence, and have no effect
    batch, accumulation, ranks          train_batch_size is their product, which DeepSpeed checks when it starts
    precision="bf16-master"             bf16: 16-bit weights and gradients, and always a float32 copy
              "bf16-master-grad32"      and gradients summed in float32: data_types.grad_accum_dtype
              "bf16-autocast" or fp16   torch_autocast over float32 weights

An unknown key at the top passes in silence (``zero_optimisation``); inside ``zero_optimization`` it is refused. What a
stage's buckets take beside this is not in a plan: DeepSpeed's are of 500 million numbers.
"""

from __future__ import annotations

import json
from typing import Any

from minigpt.memory.configurations.words import Words, check_keys, count_of, from_json, value_of
from minigpt.memory.plan import TrainingPlan

WRITTEN = ("sharding", "ranks", "shard_offload", "batch", "accumulation", "precision")
STAGES = {1: "zero1", 2: "zero2", 3: "zero3"}
CPU = {"device": "cpu", "pin_memory": True}
PRECISIONS: dict[str, dict[str, Any]] = {
    "fp32": {},
    "bf16-master": {"bf16": {"enabled": True}},
    "bf16-master-grad32": {"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}},
    "bf16-autocast": {"torch_autocast": {"enabled": True, "dtype": "bfloat16"}},
    "fp16-autocast": {"torch_autocast": {"enabled": True, "dtype": "float16"}},
}
SIZES = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
KEYS = (*SIZES, "zero_optimization", "bf16", "data_types", "torch_autocast")


def words(plan: TrainingPlan) -> Words:
    """The values that go: DeepSpeed's stages update with Adam's kind, and after backward."""
    return {
        "sharding": tuple(STAGES.values()),
        "precision": tuple(PRECISIONS),
        "autocast": (False,),
        "optimizer": ("adamw",),
        "optimizer_in_backward": (False,),
        "reshard_after_forward": (True,),
        "param_dtype": ("same",),
        "reduce_dtype": ("same",),
        "gradient_as_bucket_view": (False,),
    }


def write(plan: TrainingPlan, layer: str | None) -> str:
    """The JSON; DeepSpeed needs no name of a block."""
    stage: dict[str, Any] = {"stage": next(stage for stage, name in STAGES.items() if name == plan.sharding)}
    if plan.shard_offload != "none":
        stage["offload_optimizer"] = CPU
    if plan.shard_offload == "parameters":
        stage["offload_param"] = CPU
    sizes = dict(zip(SIZES, (plan.batch * plan.accumulation * plan.ranks, plan.batch, plan.accumulation)))
    return json.dumps({**sizes, **PRECISIONS[plan.precision], "zero_optimization": stage}, indent=2) + "\n"


def read(text: str) -> dict:
    """The plan's fields."""
    found = check_keys(from_json(text), KEYS, "DeepSpeed's file")
    whole, batch, accumulation = (count_of(found, key) for key in SIZES)
    if whole % (batch * accumulation):
        raise ValueError(f"train_batch_size is {whole}; it must be a multiple of {batch} x {accumulation}")
    inner = check_keys(found.get("zero_optimization"), ("stage", "offload_optimizer", "offload_param"),
                       "zero_optimization")  # fmt: skip
    sharding = value_of(inner, "stage", STAGES)
    for key in ("offload_optimizer", "offload_param"):
        if key in inner and inner[key] != CPU:
            raise ValueError(f"{key} is {inner[key]!r}; allowed: {CPU!r}")
    if "offload_param" in inner and (sharding != "zero3" or "offload_optimizer" not in inner):
        raise ValueError("offload_param is given; it needs stage 3 and offload_optimizer")
    said = {key: found[key] for key in ("bf16", "data_types", "torch_autocast") if key in found}
    precision = next((name for name, theirs in PRECISIONS.items() if theirs == said), None)
    if precision is None:
        raise ValueError(f"{' and '.join(said)} are {said!r}; allowed: {', '.join(map(repr, PRECISIONS.values()))}")
    offload = "parameters" if "offload_param" in inner else "optimizer" if "offload_optimizer" in inner else "none"
    return dict(sharding=sharding, ranks=whole // (batch * accumulation), shard_offload=offload, batch=batch,
                accumulation=accumulation, precision=precision)  # fmt: skip


def beside(plan: TrainingPlan) -> list[str]:
    """What stands outside of the file."""
    made = "deepspeed.ops.adam.DeepSpeedCPUAdam" if plan.shard_offload != "none" else "torch.optim.AdamW"
    said = [f"deepspeed --num_gpus {plan.ranks} starts it.", f"The optimizer is {made}, made by the script or Trainer."]
    if plan.checkpointing != "none":
        said.append(f"The script turns checkpointing on: the plan has {plan.checkpointing!r}.")
    return said
