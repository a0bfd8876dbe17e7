"""The models: one file a family, each with its configuration, its tensors and its forward pass."""

from minigpt.memory.families.architecture import FAMILIES, Architecture, Tensor
from minigpt.memory.names import KNOWN

__all__ = ["FAMILIES", "KNOWN", "Architecture", "Tensor"]
