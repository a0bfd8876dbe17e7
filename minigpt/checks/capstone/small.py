"""A copy of the model that a CPU trains: small, with the same parts, and a plan with the same switches.

    MODEL                a llama with three query heads for each key head and a tied head, as Llama 3.2 3B has them
    small.plan(plan)     every switch as it is; fewer tokens and passes, no card, and bfloat16 in the place of float16
    small.whole(plan)    for the model itself, on a GPU: as it is, but for what the meter cannot tell apart there

bfloat16 takes the same bytes, and a CPU that has no kernels for float16 is a hundred times slower with it.
Left out: what is the card's own. A CPU has other kernels, and no allocator that reserves.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from minigpt.memory.plan import TrainingPlan

MODEL: dict[str, Any] = dict(
    model_type="llama", vocab_size=1000, hidden_size=192, intermediate_size=512, num_hidden_layers=4,
    num_attention_heads=6, num_key_value_heads=2, max_position_embeddings=512, tie_word_embeddings=True,
    bos_token_id=None, eos_token_id=0, pad_token_id=0,
    initializer_range=0.1,  # a frozen head of the usual 0.02 cannot tell one byte from another
)  # fmt: skip
SEQ_LEN, SEQUENCES, PASSES, RANK = 128, 2, 2, 32  # at most


def plan(full: TrainingPlan) -> TrainingPlan:
    """``full`` for MODEL on a CPU."""
    return replace(
        full, card=None, precision=full.precision.replace("fp16", "bf16"), optimizer_loop="single",
        seq_len=SEQ_LEN, batch=min(full.batch, SEQUENCES), accumulation=min(full.accumulation, PASSES),
        rank=min(full.rank, RANK),
    )  # fmt: skip


def whole(full: TrainingPlan) -> TrainingPlan:
    """``full``; where blocks' inputs would go to the CPU's memory, which the meter would count, too, they stay."""
    return replace(full, checkpointing="full") if full.checkpointing == "offload" else full
