"""Segments and blocks: what a few tensors take of a card, and which of three numbers counts what.

The blocks are where ``predicted.allocator`` puts these requests; widths are in proportion, but for the CUDA context's.
"""

from __future__ import annotations

from minigpt.memory.figures.svg import Drawing, Figure
from minigpt.memory.predicted.allocator import Allocator
from minigpt.memory.predicted.allocator.blocks import USED
from minigpt.memory.units import MIB

CONTEXT = 141 * MIB  # a T4's, as in tests/readings/published.csv
LEFT, WIDE, TOP, TALL, APART = 20, 600, 96, 36, 74
# What is asked for, in MiB, its bucket and its name; a name of "" dies again.
REQUESTS = ((0.75, "weights", "0.75"), (0.75, "weights", "0.75"), (25, "weights", "a weight of 25"),
            (6, "activations", "6"), (6, "activations", ""), (6, "activations", "6"))  # fmt: skip


def segments_and_blocks() -> Figure:
    allocator = Allocator()
    asked = [(allocator.allocate(int(size * MIB)), bucket, name) for size, bucket, name in REQUESTS]
    for block, _, name in asked:
        if not name:
            allocator.free(block)
    named = {block.address: (bucket, name) for block, bucket, name in asked if name}
    drawing = Drawing(640)
    drawing.heading("Tensors, segments, card", "what is asked for in MiB; grey: reserved and free")
    scale = WIDE / max(segment.size for segment in allocator.segments.values())
    y, told = float(TOP), []
    for segment in sorted(allocator.segments.values(), key=lambda segment: segment.size):
        pool = "small" if segment.pool.small else "large"
        used = sum(block.size for block in segment.blocks() if block.state is USED)
        said = f"{pool} pool: a segment of {segment.size // MIB} MiB, {used / MIB:g} allocated"
        drawing.text(LEFT, y - 14, said, at="start", size=15)
        drawing.rect(LEFT, y, segment.size * scale, TALL, "panel", radius=0, edge=True)
        for block in segment.blocks():
            if block.state is USED:
                bucket, name = named[block.address]
                x, wide = LEFT + (block.address - segment.address) * scale, block.size * scale
                drawing.rect(x, y, wide - 1, TALL, bucket, radius=0)
                if wide > 60:
                    drawing.text(x + wide / 2, y + TALL / 2, name, bucket, size=15)
        told.append(said)
        y += APART
    allocated, reserved = allocator.statistics.allocated.current, allocator.statistics.reserved.current
    drawing.text(LEFT, y - 14, f"beside PyTorch: CUDA's context, {CONTEXT // MIB} MiB on a T4 (not in proportion)",
                 at="start", size=15)  # fmt: skip
    drawing.rect(LEFT, y, WIDE, TALL, "context", radius=0)
    y += TALL + 30
    rows = (
        (f"allocated: {allocated / MIB:g} MiB", "the coloured blocks, whole"),
        (f"reserved: {reserved // MIB} MiB", "the three segments"),
        (f"nvidia-smi: {(reserved + CONTEXT) // MIB} MiB", "and the context"),
    )
    for number, what in rows:
        drawing.text(LEFT, y, number, at="start", bold=True)
        drawing.text(LEFT + 240, y, what, at="start", size=15, soft=True)
        y += 26
    counted = "; ".join(f"{number}, {what}" for number, what in rows)
    return drawing.finish(y + 4, f"What a few tensors take of a card. {'; '.join(told)}. {counted}.")
