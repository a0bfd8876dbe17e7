"""The other wing: bytes of real tensors. Nothing here imports what `predicted/` has."""

from minigpt.memory.collector import at_rest

with at_rest():
    import torch  # noqa: F401  here, because every file of this folder imports it
