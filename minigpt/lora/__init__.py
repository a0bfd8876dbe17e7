"""LoRA: freeze a linear layer's weight W and learn a low-rank change to it.

    y = W x + b + s B A x         A (r, in), B (out, r);  B starts at zero, so training starts at the base model
    W' = W + s B A                the same layer after merging

    layer       one linear layer with its adapter, and what merging does to its weight
    dora        the variant that learns the length of each row apart
    matching    which layers of a model a list of targets names
    injection   adapters into a whole model; merging, unmerging and idling them all
    files       adapters in a file, under peft's names
    counting    how many parameters train, of a model or from a configuration alone

The numbers are peft 0.21's: A starts uniform in +-1/sqrt(in); adapters are float32 on a 16-bit base unless told
otherwise; a layer casts its input to the adapter's dtype and its result back to the base's.

Left out: embeddings, convolutions, several adapters at once, DoRA with rsLoRA's scale, other starts (PiSSA, LoftQ).
"""

from minigpt.lora.counting import adapter_parameters, trainable_parameters
from minigpt.lora.files import adapter_tensors, load, save
from minigpt.lora.injection import adapters, idle, inject, merge, unmerge
from minigpt.lora.layer import KINDS, LoRALinear, shapes
from minigpt.lora.matching import ALL_LINEAR

__all__ = [
    "ALL_LINEAR", "KINDS", "LoRALinear", "adapter_parameters", "adapter_tensors", "adapters", "idle", "inject", "load",
    "merge", "save", "shapes", "trainable_parameters", "unmerge",
]  # fmt: skip
