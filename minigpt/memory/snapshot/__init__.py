"""A recorded history of CUDA's caching allocator, read safely: what was held, by which line, and what was reserved.

plain       a pickle of dicts, lists, strings and numbers, read without a class or a call
recording   its events, checked; what was there before them; allocated and reserved bytes after each
blocks      the size of every block, by the allocator's rules
holders     whose Python line asked for what is held
growth      why memory was taken from the device
requests    its requests, one after the other, and those that the tape tells
placing     where in a told training it began
against     predicted beside recorded, and the first request where they part; beside has the words
"""

from minigpt.memory.snapshot.blocks import with_blocks
from minigpt.memory.snapshot.holders import Holder, holders
from minigpt.memory.snapshot.recording import Recording, read

__all__ = ["Holder", "Recording", "holders", "read", "with_blocks"]
