"""A training of several ranks: the plan's words for it, and which of them go together.

    ddp               every rank holds all; gradients are averaged through buckets (torch's DistributedDataParallel)
    zero1             the optimizer's state is dealt out: each rank updates its part and sends it to the others
    zero2             gradients, too, go to the rank that updates with them, and are freed on the others
    zero3             weights as well, in flat shards that are gathered for each block (minigpt.sharding, by hand)
    fsdp2             the same by torch's ``fully_shard``: each tensor cut along dim 0, one group for each block

A batch is that of one rank. What a stage keeps on a rank is ``predicted.sharded``. This file imports no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from minigpt.values import check_counts, check_flags

if TYPE_CHECKING:
    from minigpt.memory.plan import TrainingPlan

SHARDING = {
    "sharding": ("none", "ddp", "zero1", "zero2", "zero3", "fsdp2"),
    "param_dtype": ("same", "bf16", "fp16"),
    "reduce_dtype": ("same", "fp32"),
    "shard_offload": ("none", "optimizer", "parameters"),
}
MOST_RANKS = 2**16

# With which ``sharding`` a word has an effect, and what it is without.
ONLY_WITH = {
    "reshard_after_forward": (("fsdp2",), True),
    "param_dtype": (("fsdp2",), "same"),
    "reduce_dtype": (("fsdp2",), "same"),
    "shard_offload": (("zero1", "zero2", "zero3", "fsdp2"), "none"),
    "gradient_as_bucket_view": (("ddp",), False),
}
OF_RANKS = ("sharding", "ranks", *ONLY_WITH)


def check_ranks(plan: TrainingPlan) -> None:
    """Raise ValueError for words about ranks that are not allowed, or not together, naming the field."""
    check_counts(most=MOST_RANKS, ranks=plan.ranks)
    check_flags(reshard_after_forward=plan.reshard_after_forward, gradient_as_bucket_view=plan.gradient_as_bucket_view)
    if plan.sharding == "none" and plan.ranks != 1:
        raise ValueError(f"ranks is {plan.ranks}; with sharding 'none' it must be 1")
    if plan.sharding != "none" and plan.ranks == 1:
        raise ValueError(f"ranks is 1; with sharding {plan.sharding!r} it must be at least 2")
    for name, (kinds, plain) in ONLY_WITH.items():
        value = getattr(plan, name)
        if value != plain and plan.sharding not in kinds:
            raise ValueError(f"{name} is {value!r}; with sharding {plan.sharding!r} it must be {plain!r}")
    if plan.shard_offload == "parameters" and plan.sharding not in ("zero3", "fsdp2"):
        raise ValueError(f"shard_offload is 'parameters'; with sharding {plan.sharding!r} allowed: none, optimizer")
    if plan.shard_offload == "optimizer" and plan.sharding == "fsdp2":
        raise ValueError("shard_offload is 'optimizer'; with sharding 'fsdp2' allowed: none, parameters")
    if plan.param_dtype != "same" and plan.precision != "fp32":
        text = "the policy casts float32 weights, precision 'fp32'"
        raise ValueError(f"param_dtype is {plan.param_dtype!r} with precision {plan.precision!r}; {text}")
    if plan.reduce_dtype == "fp32" and plan.param_dtype == "same" and plan.regime.weights == 4:
        raise ValueError("reduce_dtype is 'fp32', which float32 gradients are; with param_dtype 'same' allowed: same")
