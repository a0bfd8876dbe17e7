"""The models of fsdp_qlora's readings: llama as its script trained it in March 2024, on two cards.

Source: train.py and benchmarks_03_2024.md of AnswerDotAI/fsdp_qlora; transformers 4.38, modeling_llama; torch 2.2,
distributed/fsdp/_runtime_utils.py.

    loss        logits in float32, which the outputs hold, and a copy of them without the last token
    sharding    torch's first FSDP: a group is one flat parameter, which the weights are views of, so that what is
                gathered is not copied out; a block's is under way while the block after it goes backward
    "DDP"       its NO_SHARD: all on every card, gradients reduced in place

Left out: what one stream has given back and another still uses (``record_stream``), which the first FSDP leaves to the
allocator: more is reserved, by a few gathered blocks.
"""

from __future__ import annotations

from functools import cache

from minigpt.memory import Architecture
from minigpt.memory.buckets import Reserved
from minigpt.memory.engine import ops, views
from minigpt.memory.engine.layers import Layers
from minigpt.memory.engine.tape import Tape, Value
from minigpt.memory.families.llama import Llama
from minigpt.memory.plan import TrainingPlan
from minigpt.memory.predicted.reserved import reserve
from minigpt.memory.predicted.sharded.fsdp import Fsdp, FsdpLayers, Group


class FirstLayers(FsdpLayers):
    """The weights under torch's first FSDP."""

    def __init__(self, tape: Tape, architecture: Architecture, plan: TrainingPlan, rank: int) -> None:
        super().__init__(tape, architecture, plan, rank)
        self.ranks = First(self)


class First(Fsdp):
    def _gather(self, group: Group) -> None:
        if group.whole:
            return
        self.tape.doing = "all-gather"
        for member in group.members:
            member.memory.fill()
        group.whole = True

    def _copy_out(self, group: Group) -> None:
        pass


class Older(Llama):
    """llama with transformers 4.38's loss, sharded by torch's first FSDP."""

    sharded_by = FirstLayers

    def loss(self, layers: Layers, tokens: Value, targets: Value) -> Value:
        T = targets.shape[1]
        logits = ops.cast(self.logits(layers, self.model(layers, tokens)), "float32")
        layers.outputs.append(logits)
        shifted = views.contiguous(views.narrow(logits, 1, T - 1))
        labels = views.contiguous(views.narrow(targets, 1, T - 1))
        return ops.cross_entropy(views.view(shifted, -1, self.vocab_size), views.view(labels, -1))


@cache
def on_card(name: str, batch: int, seq_len: int, card: str, kind: str) -> Reserved:
    """What a card's allocator counts under the script's defaults for a LoRA; ``kind``: FSDP, DDP or offload.

    Raises ValueError for a model that is not llama's.
    """
    known = Architecture.of(name)
    if type(known) is not Llama:
        raise ValueError(f"model is {name!r}, a {known.family}; allowed: llama's")
    shared: dict = {} if kind == "DDP" else dict(sharding="fsdp2", ranks=2)
    if kind == "offload":
        shared["shard_offload"] = "parameters"
    plan = TrainingPlan(
        method="lora", rank=64, targets="q,k,v,gate,up,down", lora_dropout=0.1, precision="bf16", adapter_dtype="same",
        checkpointing="full", holds="outputs", batch=batch, seq_len=seq_len, card=card, **shared,
    )  # fmt: skip
    return reserve(Older(**vars(known)), plan)
