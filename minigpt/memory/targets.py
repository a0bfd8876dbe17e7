"""Which matrices peft adapts where its configuration names none: ``LoraConfig()``, by the model's type.

Where peft has none the caller has to name them. So it is with every mixture, mixtral too: it stands in peft's mapping,
but peft, which treats a mixture's experts by themselves, raises when the configuration names nothing.

Read in peft 0.21.2, ``TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING``, and written in the plan's words; c_attn and
query_key_value are its "qkv", fc1 and fc2 its "up" and "down". tests/test_recipes.py asks peft again, of every family.
"""

from __future__ import annotations

PEFT = dict.fromkeys(("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "opt"), "q,v")
PEFT |= dict.fromkeys(("gpt2", "gpt_neox", "falcon", "bloom"), "qkv")
PEFT["phi"] = "q,v,up,down"


def pefts_own(family: str) -> str:
    """The targets, in the plan's words. Raises ValueError for a family of which peft wants them named."""
    if family not in PEFT:
        raise ValueError(f"targets is 'peft'; peft has none of its own for {family}: allowed all-linear, or names")
    return PEFT[family]
