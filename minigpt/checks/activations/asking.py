"""The closed book of lab 05.

While an answer runs the course's own checkpoints, losses and lists refuse, and torch's own checkpoint does. What an
answer keeps is counted beside it, by ``probes.watching``.
"""

from __future__ import annotations

import torch.utils.checkpoint

from minigpt import checkpointing, chunked_loss
from minigpt.checks.closing import knows
from minigpt.memory import explain, saved
from minigpt.memory.measured import losses
from minigpt.memory.measured.meter import MemoryMeter
from minigpt.memory.predicted.run import run as run_on_shapes

knows(*(module.__name__ for module in (checkpointing, chunked_loss, explain, saved, losses)))
knows(chunked_loss._Chunked.forward, MemoryMeter.result, run_on_shapes, torch.utils.checkpoint.checkpoint)
