"""Who says what: the plan's fields that are the training script's, and how a library's own words are checked.

A library's module has ``WRITTEN``, the fields that its file says, and ``words(plan)``, the values that go with it.
tests/test_configurations.py holds that every field of the plan is in one of the three.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from minigpt.memory.plan import PRECISIONS, TrainingPlan

# Said where the model is made, where it is called, and where the optimizer is made: by no library's file.
SCRIPT = frozenset({
    "batch", "seq_len", "method", "precision", "rank", "targets", "variant", "adapter_dtype", "lora_dropout",
    "modules_to_save", "quantization", "double_quantization", "kbit_preparation", "optimizer", "optimizer_loop",
    "optimizer_in_backward", "zero_grad", "step", "sequences", "attention", "holds", "checkpointing", "every_n_layers",
    "use_cache", "float32_outputs", "upcast", "loss", "logits_to_keep", "accumulation", "card", "autocast",
})  # fmt: skip

Words = Mapping[str, tuple[Any, ...]]  # field: the values that go

# torch's DTensor goes through these. bitsandbytes' kernels have no rule for it, Adafactor adds plain tensors to it, and
# GaLore projects whole matrices.
OF_DTENSORS = ("adamw", "kahan_adamw", "sgd", "sgd_momentum")
MIXED = {"same": "no", "bf16": "bf16", "fp16": "fp16"}  # the plan's param_dtype: accelerate's mixed_precision


def fsdp2(plan: TrainingPlan) -> Words:
    """What goes with FSDP2 in accelerate, whoever calls it."""
    whole = tuple(name for name, regime in PRECISIONS.items() if regime.autocast is None)
    return {
        "precision": whole,  # accelerate's "bf16" is FSDP2's policy: param_dtype
        "autocast": (False,),
        "optimizer": OF_DTENSORS,
        "checkpointing": ("none", "full", "offload"),
        "shard_offload": ("none", "parameters"),
        "gradient_as_bucket_view": (False,),
    }


def check_words(plan: TrainingPlan, words: Words, library: str) -> None:
    """Raise ValueError, naming the field, for a value of the plan that the library has no word for."""
    for name, allowed in words.items():
        value = getattr(plan, name)
        if value not in allowed:
            which = ", ".join(str(value) for value in allowed)
            also = "" if name == "sharding" else f" with sharding {plan.sharding!r}"
            raise ValueError(f"{name} is {value!r}, for which {library} has no word{also}: allowed: {which}")


def check_keys(found: Any, known: Iterable[str], where: str) -> dict:
    """``found``, if it is a dictionary of ``known`` keys alone. Raises ValueError, naming the key."""
    known = tuple(known)
    if not isinstance(found, dict):
        raise ValueError(f"{where} is {found!r}; it must be a dictionary")
    for key in found:
        if key not in known:
            raise ValueError(f"{key!r} is no word of {where} that a plan has: allowed: {', '.join(known)}")
    return found


def value_of(found: dict, key: str, allowed: Mapping[Any, Any], default: Any = None) -> Any:
    """What the plan calls the value of ``key``. Raises ValueError, naming the key, for one that is not ``allowed``."""
    value = found.get(key, default)
    for theirs, ours in allowed.items():
        if value == theirs and isinstance(value, bool) == isinstance(theirs, bool):
            return ours
    raise ValueError(f"{key} is {value!r}; allowed: {', '.join(repr(theirs) for theirs in allowed)}")


def count_of(found: dict, key: str) -> int:
    """A positive integer under ``key``. Raises ValueError, naming the key."""
    value = found.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{key} is {value!r}; it must be an integer of at least 1")
    return value


def from_json(text: str) -> Any:
    """What the JSON holds. Raises ValueError for text that is none."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"text is no JSON: {error}") from None
