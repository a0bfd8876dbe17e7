"""From a plan to the file that makes a library train like that, and back.

    accelerate      the YAML of ``accelerate launch --config_file``: ddp, fsdp2
    transformers    the JSON of ``TrainingArguments`` (HfArgumentParser.parse_json_file): fsdp2
    deepspeed       DeepSpeed's JSON: zero1, zero2, zero3

    write(plan, "accelerate")               the file's text
    read(text, "accelerate")                the plan's fields that it says
    beside(plan, "accelerate")              what it cannot say and the training script must
    plugin_arguments(plan)                  accelerate's FullyShardedDataParallelPlugin, by keyword

Every field of the plan is written, or the training script's, or has one value that goes (``words``); another is a
ValueError that names it. These libraries take many a wrong word in silence: accelerate any key under ``fsdp_config``,
transformers, too, DeepSpeed any key at the top. So ``read`` has lists of its own, and a key that is not in them is a
ValueError. Read in accelerate 1.15, transformers 5.17 and DeepSpeed 0.19.8.

Left out: more than one machine; FSDP1; parallelism of other kinds. This package imports torch in
``plugin_arguments`` alone.
"""

from __future__ import annotations

from types import ModuleType

from minigpt.memory.configurations import accelerate, deepspeed, transformers
from minigpt.memory.configurations.accelerate import plugin_arguments
from minigpt.memory.configurations.words import check_words
from minigpt.memory.plan import TrainingPlan
from minigpt.values import check_choice

__all__ = ["LIBRARIES", "beside", "plugin_arguments", "read", "write"]

LIBRARIES: dict[str, ModuleType] = {"accelerate": accelerate, "transformers": transformers, "deepspeed": deepspeed}


def write(plan: TrainingPlan, library: str, layer: str | None = None) -> str:
    """The text of the library's file. ``layer``: the class of a block, where the model does not say it itself.

    Transformers' models do; a MiniGPT's is "Block". Raises ValueError, naming the field, for what it has no word for.
    """
    check_choice(LIBRARIES, library=library)
    check_words(plan, LIBRARIES[library].words(plan), library)
    return LIBRARIES[library].write(plan, layer)


def read(text: str, library: str) -> dict:
    """The plan's fields that such a file says. Raises ValueError, naming the key, for one that ``write`` never has."""
    check_choice(LIBRARIES, library=library)
    if not isinstance(text, str):
        raise ValueError(f"text is {text!r}; it must be the text of {library}'s file")
    return LIBRARIES[library].read(text)


def beside(plan: TrainingPlan, library: str) -> list[str]:
    """Sentences: what the file cannot say, and the script or its launcher has to."""
    check_choice(LIBRARIES, library=library)
    return LIBRARIES[library].beside(plan)
