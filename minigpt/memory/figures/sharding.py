"""What each stage deals out: a row for each rank, its own part in the bucket's colour, what others hold in grey.

Widths are in proportion to bytes. What a rank keeps when backward ends is asked from
the predictor.
"""

from __future__ import annotations

from minigpt.memory.figures.svg import Drawing, Figure
from minigpt.memory.plan import TrainingPlan
from minigpt.memory.predicted.step import predict
from minigpt.memory.units import mb
from minigpt.model import GPTConfig

RANKS = 4
LEFT, TOP, ROW, TALL, STAGE, GAP = 84, 112, 17, 13, 112, 8
SCALE = 31.5  # per byte of a parameter
BYTES = {"weights": 4, "gradients": 4, "optimizer": 8}  # float32, AdamW
# the plan's word, what the stage is called, what it deals out
STAGES = (
    ("ddp", "data parallel", ()),
    ("zero1", "ZeRO-1", ("optimizer",)),
    ("zero2", "ZeRO-2", ("optimizer", "gradients")),
    ("zero3", "ZeRO-3, FSDP", ("optimizer", "gradients", "weights")),
)
SAID = {0: "every rank keeps all", 1: "state is dealt out", 2: "gradients, too", 3: "and weights"}


def sharding_stages() -> Figure:
    drawing = Drawing(640)
    whose = "MiniGPT nano in float32 with AdamW; grey: another rank has it"
    drawing.heading(f"What each of {RANKS} ranks keeps when backward ends", whose)
    x, starts = float(LEFT), {}
    for bucket, nbytes in BYTES.items():
        starts[bucket] = x
        drawing.chip(x + nbytes * SCALE / 2, TOP - 30, bucket, bucket, size=14)
        x += nbytes * SCALE + GAP
    told = []
    for i, (kind, name, dealt) in enumerate(STAGES):
        y = TOP + 12 + i * STAGE
        step = predict(GPTConfig.preset("nano"), TrainingPlan(sharding=kind, ranks=RANKS))
        kept = next(ledger for phase, ledger in reversed(step.timeline()) if phase == "backward").persistent
        each = f"{mb(kept)} on each"
        drawing.text(20, y, name, at="start", bold=True)
        drawing.text(170, y, SAID[len(dealt)], at="start", size=15, soft=True)
        drawing.text(620, y, each, at="end", bold=True)
        for rank in range(RANKS):
            top = y + 18 + rank * ROW
            drawing.text(20, top + TALL / 2, f"rank {rank}", at="start", size=13, soft=True)
            for bucket, nbytes in BYTES.items():
                wide, parts = nbytes * SCALE, RANKS if bucket in dealt else 1
                drawing.rect(starts[bucket], top, wide, TALL, "panel", radius=0, edge=True)
                own = starts[bucket] + rank % parts * wide / parts
                drawing.rect(own, top, wide / parts, TALL, bucket, radius=0)
        told.append(f"{name}: {SAID[len(dealt)]}, {each}")
    alt = f"Weights, gradients and optimizer state on {RANKS} ranks, a row for each. {'; '.join(told)}."
    return drawing.finish(TOP + 8 + len(STAGES) * STAGE, alt)
