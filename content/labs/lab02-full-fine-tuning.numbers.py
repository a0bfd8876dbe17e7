"""The numbers in the prose of lab 02. content/README.md says how it uses them."""

import math

from minigpt.memory import Architecture
from minigpt.model import GPTConfig

nano = Architecture.of(GPTConfig.preset("nano"))
small = Architecture.of(GPTConfig.preset("small"))
