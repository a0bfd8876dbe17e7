"""Optimizers, each at the size of its idea: what an update reads, what it keeps, and what that costs.

                    keeps per parameter of a matrix (m, n)                      and makes on the way
    adam            m and v: 8 bytes in float32                                 --
    master          m, v and a float32 copy of a 16-bit weight: 12 bytes        float32 copies of what is 16-bit
    kahan           m, v and what rounding took away, in the weight's dtype     one tensor like the weight
    adam8bit        m and v in 8 bits: 2.03 bytes                               m and v in float32, one tensor at a time
    galore          m and v of a projected gradient: min r + 2 max r elements   an SVD, once in ``gap`` steps
    adafactor       a mean per row and per column: m + n elements               the whole of v, for a moment
    lion            m alone: 4 bytes in float32                                 its direction

    one_by_one      the loop that all of them have, and what is checked of their options
    blockwise       numbers in 8 bits: the maps, and blocks that share a scale
    in_backward     an optimizer for each parameter, which runs and frees the gradient as soon as it is there

"min" and "max" are the shorter and the longer side of the matrix, r GaLore's rank.
Left out: foreach and fused loops, sharded state; SGD and plain AdamW are torch's.
"""

from minigpt.optim.adafactor import Adafactor
from minigpt.optim.adam import adam_direction, adam_step
from minigpt.optim.adam8bit import AdamW8bit
from minigpt.optim.galore import GaLoreAdamW, galore_groups
from minigpt.optim.in_backward import InBackward
from minigpt.optim.kahan import KahanAdamW
from minigpt.optim.lion import Lion
from minigpt.optim.master import MasterAdamW, adamw

__all__ = [
    "Adafactor", "AdamW8bit", "GaLoreAdamW", "InBackward", "KahanAdamW", "Lion", "MasterAdamW", "adam_direction",
    "adam_step", "adamw", "galore_groups",
]  # fmt: skip
