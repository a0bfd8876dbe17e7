"""What six checkpointing policies keep over a row of blocks, and what has just run again as the last segment goes back.

The sums are in u, the bytes of one block's input. What a block saves, and what the selective policy keeps of it, are
asked from the predictor; which blocks run again together, from ``minigpt.memory.segments``.
"""

from __future__ import annotations

from minigpt.memory.figures.svg import Drawing, Figure
from minigpt.memory.plan import TrainingPlan
from minigpt.memory.predicted.step import predict
from minigpt.memory.saved import saved_by_block
from minigpt.memory.segments import segments
from minigpt.model import GPTConfig

BLOCKS = 9
LEFT, WIDTH, HEIGHT, STEP, APART, TOP = 30, 34, 44, 54, 100, 150
SAID = {
    "none": "all that the blocks save",
    "full": "every block's input; one block at a time is whole",
    "sqrt": "an input for every three; three blocks are whole",
    "every": "every second block; the others stay whole",
    "selective": "inputs, and what products and attention put out",
    "offload": "inputs on the CPU; one block at a time is whole",
}
CONFIG = GPTConfig.preset("nano", n_layer=BLOCKS)


def checkpoint_policies() -> Figure:
    whole, chosen = _units()
    drawing = Drawing(640)
    drawing.heading(
        "What stays, and what has just run again", "nine blocks of MiniGPT, as the last of them goes backward"
    )
    drawing.text(
        20,
        76,
        f"u: one block's input; a whole block is {whole}u. Gradients in flight (5u) are left out",
        at="start",
        size=15,
        soft=True,
    )
    keys = (("activations", "kept"), ("temporary", "run again"), ("context", "on the CPU"))
    for x, (fill, words) in zip((20, 84, 190), keys, strict=True):
        drawing.chip(x, 104, words, fill, size=14, at="start")
    told = []
    for i, (policy, words) in enumerate(SAID.items()):
        y = TOP + i * APART
        drawing.text(20, y, policy, at="start", bold=True)
        drawing.text(110, y, words, at="start", size=15, soft=True)
        units = _row(drawing, y + 18, policy, whole, chosen)
        drawing.text(620, y + 18 + HEIGHT / 2, f"{units}u", at="end", bold=True)
        told.append(f"{policy}, {words}: {units}u")
    return drawing.finish(
        TOP + len(SAID) * APART - 10,
        "A row of nine blocks for each of six policies, as the last segment has run again, gradients in flight left "
        f"out. {'; '.join(told)}.",
    )


def _row(drawing: Drawing, y: float, policy: str, whole: int, chosen: int) -> int:
    """Nine blocks, each with its input at its left; returns the u that are there."""
    runs = segments(policy, BLOCKS)
    inputs, again = {run[0] for run in runs}, {i for run in runs for i in run}
    opened = set(runs[-1]) if runs and BLOCKS - 1 in runs[-1] else set()
    units = 0
    for i in range(BLOCKS):
        x = LEFT + i * STEP
        if i in inputs:
            away = policy == "offload" and i not in opened
            drawing.rect(x - 10, y, 7, HEIGHT, "context" if away else "activations", radius=2)
            units += not away
        fill = "panel" if i in again else "activations"
        drawing.rect(x, y, WIDTH, HEIGHT, "temporary" if i in opened else fill, radius=4, edge=fill == "panel")
        if policy == "selective":
            part = HEIGHT * (chosen - 1) / whole
            drawing.rect(x, y + HEIGHT - part, WIDTH, part, "activations", radius=4)
            units += chosen - 1
        units += whole * (i not in again)
    kept = (chosen - 3 if policy == "selective" else 0) + 1  # two of what is kept no plain step saves; and the input
    return units + (whole * len(opened) - kept if opened else 0)


def _units() -> tuple[int, int]:
    """What a block saves, and what the selective policy keeps of it, in u."""
    plan = TrainingPlan(batch=16, seq_len=256)
    u = 4 * plan.tokens * CONFIG.n_embd
    whole = sum(row.counted for row in saved_by_block(CONFIG, plan))
    sizes = [
        predict(GPTConfig.preset("nano", n_layer=n), TrainingPlan(batch=16, seq_len=256, checkpointing="selective"))
        for n in (2, 3)
    ]
    return round(whole / u), round((sizes[1].ledger.activations - sizes[0].ledger.activations) / u)
