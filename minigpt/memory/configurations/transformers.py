"""transformers: the fields of ``TrainingArguments`` that a plan with FSDP2 says, as JSON.

``HfArgumentParser(TrainingArguments).parse_json_file(path)`` reads it. In ``fsdp_config`` a misspelt key passes in
silence; ``fsdp`` is True, since its older words are deprecated. How many ranks there are is ``torchrun``'s to say.
"""

from __future__ import annotations

import json
from typing import Any

from minigpt.memory.configurations.words import Words, check_keys, count_of, from_json, fsdp2, value_of
from minigpt.memory.plan import TrainingPlan

WRITTEN = ("sharding", "reshard_after_forward", "shard_offload", "param_dtype", "checkpointing", "batch",
           "accumulation", "optimizer", "optimizer_loop")  # fmt: skip
OPTIMIZERS = {"adamw_torch": ("adamw", "foreach"), "adamw_torch_fused": ("adamw", "fused"), "sgd": ("sgd", "foreach")}
INNER = ("version", "auto_wrap_policy", "reshard_after_forward", "cpu_offload", "activation_checkpointing",
         "transformer_layer_cls_to_wrap")  # fmt: skip
KEYS = ("fsdp", "fsdp_config", "bf16", "fp16", "optim", "per_device_train_batch_size", "gradient_accumulation_steps",
        "gradient_checkpointing", "output_dir")  # fmt: skip


def words(plan: TrainingPlan) -> Words:
    """The values that go into the arguments."""
    loops = tuple(loop for name, loop in OPTIMIZERS.values() if name == plan.optimizer)
    return {
        "sharding": ("fsdp2",),
        **fsdp2(plan),
        "optimizer": tuple(dict.fromkeys(name for name, _ in OPTIMIZERS.values())),
        "optimizer_loop": loops or ("foreach",),
        "checkpointing": ("none", "full"),
        "reduce_dtype": ("same",),
    }


def write(plan: TrainingPlan, layer: str | None) -> str:
    """The JSON; ``output_dir`` is where checkpoints go."""
    inner: dict[str, Any] = {
        "version": 2,
        "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "reshard_after_forward": plan.reshard_after_forward,
        "cpu_offload": plan.shard_offload == "parameters",
        "activation_checkpointing": plan.checkpointing == "full",
        **({"transformer_layer_cls_to_wrap": [layer]} if layer else {}),
    }
    optim = next(name for name, ours in OPTIMIZERS.items() if ours == (plan.optimizer, plan.optimizer_loop))
    return json.dumps(
        {
            "output_dir": "output",
            "per_device_train_batch_size": plan.batch,
            "gradient_accumulation_steps": plan.accumulation,
            "gradient_checkpointing": False,  # FSDP's own does without a second gathering
            "optim": optim,
            "bf16": plan.param_dtype == "bf16",
            "fp16": plan.param_dtype == "fp16",
            "fsdp": True,
            "fsdp_config": inner,
        },
        indent=2,
    ) + "\n"  # fmt: skip


def read(text: str) -> dict:
    """The plan's fields."""
    flags = {True: True, False: False}
    found = check_keys(from_json(text), KEYS, "TrainingArguments")
    value_of(found, "fsdp", {True: True})
    value_of(found, "gradient_checkpointing", {False: False}, False)
    inner = check_keys(found.get("fsdp_config"), INNER, "fsdp_config")
    value_of(inner, "version", {2: 2}, 2)
    value_of(inner, "auto_wrap_policy", {"TRANSFORMER_BASED_WRAP": None}, "TRANSFORMER_BASED_WRAP")
    half = [name for name in ("bf16", "fp16") if value_of(found, name, flags, False)]
    if len(half) == 2:
        raise ValueError("fp16 is True; with bf16 it must be False")
    optimizer, loop = value_of(found, "optim", OPTIMIZERS, "adamw_torch_fused")
    return {
        "sharding": "fsdp2",
        "batch": count_of(found, "per_device_train_batch_size"),
        "accumulation": count_of(found, "gradient_accumulation_steps"),
        "optimizer": optimizer,
        "optimizer_loop": loop,
        "param_dtype": half[0] if half else "same",
        "reshard_after_forward": value_of(inner, "reshard_after_forward", flags, True),
        "shard_offload": value_of(inner, "cpu_offload", {True: "parameters", False: "none"}, False),
        "checkpointing": value_of(inner, "activation_checkpointing", {True: "full", False: "none"}, False),
    }


def beside(plan: TrainingPlan) -> list[str]:
    """What stands outside of the file: the ranks, and what the script loads."""
    from minigpt.memory.configurations import accelerate

    return [f"torchrun --nproc-per-node {plan.ranks} starts it.", *accelerate.beside(plan)]
