"""Optimizers and their state: Adam's step, the 8-bit map, blocks, all of it put together, and the bytes."""
