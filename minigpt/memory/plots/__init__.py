"""The course's pictures: where the bytes are (bars), when (timelines), and what changes them (lines).

Each bucket and each method has one colour, here, in every notebook and in the report; hatching means frozen weights.
Titles state a finding, so the caller makes them from the result. Sizes are in GB (1e9) or MB (1e6), whichever suits
the largest. A figure that a notebook shows carries, as alt text, what ``describe`` says of it.
"""

from minigpt.memory.plots.bars import bars, stacked_bars
from minigpt.memory.plots.described import carry_descriptions, describe
from minigpt.memory.plots.lines import lines, losses
from minigpt.memory.plots.lives import lives
from minigpt.memory.plots.style import COLORS, METHODS, finish, method_color, new_axes, plain_log
from minigpt.memory.plots.timeline import timeline

__all__ = [
    "COLORS", "METHODS", "bars", "describe", "finish", "lines", "lives", "losses", "method_color", "new_axes",
    "plain_log", "stacked_bars", "timeline",
]  # fmt: skip

carry_descriptions()
