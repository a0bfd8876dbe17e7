"""The other wing: bytes of real tensors. Nothing here imports what `predicted/` has."""
