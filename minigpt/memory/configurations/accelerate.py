"""accelerate: the YAML of ``accelerate launch --config_file``, and the arguments of its FSDP plugin.

    plan                      YAML                                      plugin
    sharding, ranks           distributed_type, num_processes           fsdp_version=2
    reshard_after_forward     fsdp_reshard_after_forward                reshard_after_forward
    shard_offload             fsdp_offload_params                       cpu_offload
    checkpointing             fsdp_activation_checkpointing(_offload)   activation_checkpointing(_offload)
    param_dtype               mixed_precision                           mixed_precision_policy
    reduce_dtype="fp32"       no word: "bf16" reduces in bfloat16       mixed_precision_policy

Without a wrap policy accelerate makes one group of the whole model, whose weights are all gathered at once; so the
policy is always written. Under DDP "bf16" is autocast over float32 weights; under FSDP2 it is the policy, autocast,
and a float32 copy of trained 16-bit weights.
"""

from __future__ import annotations

import json
from typing import Any

from minigpt.memory.configurations.words import MIXED, Words, check_keys, check_words, count_of, fsdp2, value_of
from minigpt.memory.plan import TrainingPlan

WRITTEN = ("sharding", "ranks", "reshard_after_forward", "shard_offload", "param_dtype", "checkpointing", "precision")
TYPES = {"MULTI_GPU": "ddp", "FSDP": "fsdp2"}
FIXED = {"compute_environment": "LOCAL_MACHINE", "debug": False, "machine_rank": 0, "main_training_function": "main",
         "num_machines": 1, "use_cpu": False}  # fmt: skip
FSDP_FIXED = {"fsdp_version": 2, "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
              "fsdp_cpu_ram_efficient_loading": True, "fsdp_state_dict_type": "SHARDED_STATE_DICT"}  # fmt: skip
AGAIN = ("fsdp_activation_checkpointing", "fsdp_activation_checkpointing_offload")
CHECKPOINTING = {(False, False): "none", (True, False): "full", (True, True): "offload"}
FSDP_KEYS = (*FSDP_FIXED, "fsdp_reshard_after_forward", "fsdp_offload_params", *AGAIN,
             "fsdp_transformer_layer_cls_to_wrap")  # fmt: skip


def words(plan: TrainingPlan) -> Words:
    """The values that go into the YAML."""
    more: Words = {"sharding": tuple(TYPES.values()), "reduce_dtype": ("same",), "gradient_as_bucket_view": (False,)}
    return {**more, **(fsdp2(plan) if plan.sharding == "fsdp2" else {})}


def write(plan: TrainingPlan, layer: str | None) -> str:
    """The YAML. Every value is written as JSON has it, which YAML reads alike: "no" stays a text."""
    kind = next(theirs for theirs, ours in TYPES.items() if ours == plan.sharding)
    mixed = MIXED[plan.param_dtype] if plan.sharding == "fsdp2" else _autocast(plan)
    top: dict[str, Any] = {**FIXED, "distributed_type": kind, "mixed_precision": mixed, "num_processes": plan.ranks}
    lines = [f"# {line}" for line in beside(plan)]
    lines += [f"{key}: {json.dumps(value)}" for key, value in sorted(top.items())]
    if plan.sharding == "fsdp2":
        inner: dict[str, Any] = {
            **FSDP_FIXED,
            "fsdp_reshard_after_forward": plan.reshard_after_forward,
            "fsdp_offload_params": plan.shard_offload == "parameters",
            **dict(zip(AGAIN, _again(plan))),
            **({"fsdp_transformer_layer_cls_to_wrap": layer} if layer else {}),
        }
        lines += ["fsdp_config:", *(f"  {key}: {json.dumps(value)}" for key, value in sorted(inner.items()))]
    return "\n".join(lines) + "\n"


def read(text: str) -> dict:
    """The plan's fields. What weights are loaded in is not in the file, so neither is ``precision``."""
    import yaml  # accelerate needs it, the course does not

    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"text is no YAML: {' '.join(str(error).split())}") from None
    keys = (*FIXED, "distributed_type", "mixed_precision", "num_processes", "fsdp_config")
    found = check_keys(found, keys, "accelerate's file")
    for key, value in FIXED.items():
        value_of(found, key, {value: value}, value)
    sharding = value_of(found, "distributed_type", TYPES)
    mixed = value_of(found, "mixed_precision", {name: name for name in MIXED.values()}, "no")
    fields = {"sharding": sharding, "ranks": count_of(found, "num_processes")}
    if sharding == "ddp":
        if "fsdp_config" in found:
            raise ValueError("fsdp_config is given; with distributed_type 'MULTI_GPU' accelerate passes over it")
        return fields
    inner = check_keys(found.get("fsdp_config"), FSDP_KEYS, "fsdp_config")
    for key in ("fsdp_version", "fsdp_auto_wrap_policy"):  # theirs are 1 and no groups
        value_of(inner, key, {FSDP_FIXED[key]: None})
    flags = {True: True, False: False}
    value_of(inner, "fsdp_cpu_ram_efficient_loading", flags, True)
    value_of(inner, "fsdp_state_dict_type", {"SHARDED_STATE_DICT": None, "FULL_STATE_DICT": None}, "SHARDED_STATE_DICT")
    again = tuple(value_of(inner, key, flags, False) for key in AGAIN)
    if again not in CHECKPOINTING:
        raise ValueError(f"{AGAIN[1]} is True; it needs {AGAIN[0]}")
    return {
        **fields,
        "reshard_after_forward": value_of(inner, "fsdp_reshard_after_forward", flags),  # theirs is FSDP1's word
        "shard_offload": value_of(inner, "fsdp_offload_params", {True: "parameters", False: "none"}, False),
        "checkpointing": CHECKPOINTING[again],
        "param_dtype": next(ours for ours, theirs in MIXED.items() if theirs == mixed),
    }


def beside(plan: TrainingPlan) -> list[str]:
    """What the training script has to say."""
    regime = plan.regime
    said = [f"The script loads the model with dtype=torch.{regime.half if regime.weights == 2 else 'float32'}."]
    if plan.method == "qlora" and plan.sharding == "fsdp2":
        storage = f"bnb_4bit_quant_storage=torch.{regime.half if regime.weights == 2 else 'float32'}"
        said.append(f"BitsAndBytesConfig needs {storage}: of uint8 every rank keeps all 4-bit weights.")
    if plan.sharding == "ddp" and plan.checkpointing != "none":
        said.append(f"The script turns checkpointing on: the plan has {plan.checkpointing!r}.")
    return said


def plugin_arguments(plan: TrainingPlan, layer: str | None = None) -> dict[str, Any]:
    """The keyword arguments of accelerate's ``FullyShardedDataParallelPlugin``.

    With a ``param_dtype`` or ``reduce_dtype`` they hold the policy, and ``Accelerator(mixed_precision="no")`` keeps it.
    Raises ValueError, naming the field, for what it has no word for.
    """
    check_words(plan, {"sharding": ("fsdp2",), **fsdp2(plan)}, "accelerate's plugin")
    again = dict(zip((key.removeprefix("fsdp_") for key in AGAIN), _again(plan)))
    return {
        "fsdp_version": 2,
        "auto_wrap_policy": "transformer_based_wrap",
        "reshard_after_forward": plan.reshard_after_forward,
        "cpu_offload": plan.shard_offload == "parameters",
        **again,
        **({"transformer_cls_names_to_wrap": [layer]} if layer else {}),
        **_policy(plan),
    }


def _policy(plan: TrainingPlan) -> dict[str, Any]:
    if (plan.param_dtype, plan.reduce_dtype) == ("same", "same"):
        return {}
    import torch  # here, because the rest of the package does without

    own = plan.regime.half if plan.regime.weights == 2 else "float32"
    computed = getattr(torch, {"bf16": "bfloat16", "fp16": "float16"}.get(plan.param_dtype, own))
    reduced = torch.float32 if plan.reduce_dtype == "fp32" else computed
    policy = {"param_dtype": computed, "reduce_dtype": reduced, "output_dtype": computed}
    return {"mixed_precision_policy": policy}


def _again(plan: TrainingPlan) -> tuple[bool, bool]:
    return next(flags for flags, name in CHECKPOINTING.items() if name == plan.checkpointing)


def _autocast(plan: TrainingPlan) -> str:
    return {"bfloat16": "bf16", "float16": "fp16", None: "no"}[plan.autocast_dtype]
