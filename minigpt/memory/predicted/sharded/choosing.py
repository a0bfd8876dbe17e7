"""The weights of a model as the plan's sharding leaves them on a rank, and what is refused."""

from __future__ import annotations

from minigpt.memory.engine.layers import Layers, Loaded
from minigpt.memory.engine.tape import Tape
from minigpt.memory.families import Architecture
from minigpt.memory.plan import ALLOWED, TrainingPlan
from minigpt.memory.predicted.sharded.ddp import DdpLayers
from minigpt.memory.predicted.sharded.flat import FlatLayers
from minigpt.memory.predicted.sharded.fsdp import FsdpLayers

ZERO = ("zero1", "zero2", "zero3")
BLOCK_BY_BLOCK = ("zero3", "fsdp2")  # what gathers weights
TORCHS_OWN = ("adamw", "sgd", "sgd_momentum")  # what updates a DTensor
NUMBER_BY_NUMBER = (*TORCHS_OWN, "kahan_adamw")  # what updates a part of a matrix as it updates the whole
ONE_DTYPE = ("fp32", "bf16", "fp16", "bf16-autocast", "fp16-autocast")  # of weights and gradients; no second copy
RETURN_MORE = ("bloom", "falcon")  # a tuple, of which the hooks of minigpt.sharding.zero3 know nothing


def layers_of(
    tape: Tape, architecture: Architecture, plan: TrainingPlan, rank: int, loaded: Loaded | None = None
) -> Layers:
    """Raises ValueError, naming the field, for what is not followed with ranks, and for a rank that is none."""
    if plan.sharding == "none":
        return Layers(tape, architecture, plan, loaded)
    if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < plan.ranks:
        raise ValueError(f"rank is {rank!r}; of {plan.ranks} ranks allowed: 0 to {plan.ranks - 1}")
    check(architecture, plan)
    if plan.sharding == "fsdp2":
        return (architecture.sharded_by or FsdpLayers)(tape, architecture, plan, rank)
    if plan.sharding == "ddp":
        return DdpLayers(tape, architecture, plan, loaded)
    return FlatLayers(tape, architecture, plan)


def check(architecture: Architecture, plan: TrainingPlan) -> None:
    """Raise ValueError for what is not followed with ranks: no words but the allowed ones."""
    only: dict[str, tuple] = {
        "step": ("steady", "first"), "zero_grad": ("before_forward",), "optimizer_in_backward": (False,),
        "float32_outputs": (False,), "modules_to_save": ("",), "loss": ("model", "shifted"), "use_cache": (False,),
    }  # fmt: skip
    if plan.sharding == "ddp":
        only["optimizer"] = tuple(name for name in ALLOWED["optimizer"] if name != "galore")
    else:
        only["optimizer"] = TORCHS_OWN if plan.sharding == "fsdp2" else NUMBER_BY_NUMBER
        if plan.method == "qlora":
            only["quantization"] = ("nf4",)
    if plan.sharding in BLOCK_BY_BLOCK:
        only["precision"] = ONE_DTYPE
        only["checkpointing"] = ("none", "full", "every", "selective")
    if plan.sharding in ZERO:
        only["precision"] = (*ONE_DTYPE, "bf16-adam32", "bf16-master")
        only["shard_offload"] = ("none",)
    if plan.param_dtype != "same":
        only["method"] = ("full",)
    for name, allowed in only.items():
        if (value := getattr(plan, name)) not in allowed:
            text = ", ".join(str(each) or "none" for each in allowed)
            raise ValueError(f"{name} is {value!r}; predicted with sharding {plan.sharding!r}: {text}")
    if plan.sharding == "zero3" and architecture.family in RETURN_MORE:
        text = f"a {architecture.family}'s blocks return more than a tensor: allowed for it: ddp, zero1, zero2, fsdp2"
        raise ValueError(f"sharding is 'zero3'; {text}")
