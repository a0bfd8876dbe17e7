"""Drawn figures: what flows, what lies where, and when. Made by code, so that their bytes are the package's.

Each is a function that returns a ``Figure`` (SVG, alt text); ``FIGURES`` has them by the name that lessons use:
``[[ figure("llama-block") ]]``. The build writes them to lessons/figures/.
"""

from minigpt.memory.figures.blocks import (
    llama_block,
    llama_block_autocast,
    llama_block_lora,
    llama_block_saved,
    minigpt_block,
)
from minigpt.memory.figures.card import card_ledger
from minigpt.memory.figures.checkpoints import checkpoint_policies
from minigpt.memory.figures.formats import number_formats
from minigpt.memory.figures.lora import lora
from minigpt.memory.figures.nf4 import nf4
from minigpt.memory.figures.segments import segments_and_blocks
from minigpt.memory.figures.sharding import sharding_stages
from minigpt.memory.figures.step import step_life
from minigpt.memory.figures.svg import Figure

FIGURES = {
    "llama-block": llama_block,
    "llama-block-saved": llama_block_saved,
    "llama-block-autocast": llama_block_autocast,
    "llama-block-lora": llama_block_lora,
    "minigpt-block": minigpt_block,
    "card-ledger": card_ledger,
    "checkpointing": checkpoint_policies,
    "lora": lora,
    "nf4": nf4,
    "number-formats": number_formats,
    "segments": segments_and_blocks,
    "sharding": sharding_stages,
    "step-life": step_life,
}

__all__ = ["FIGURES", "Figure"]
