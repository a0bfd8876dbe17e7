"""The ledger of a card: one card as a container, and what lies in it at three instants of a step.

Heights are in proportion to bytes. The instants are those of ``predict``; what CUDA itself takes is ``gpus.CONTEXT``,
which is assumed and not predicted.
"""

from __future__ import annotations

from minigpt.memory.buckets import BUCKETS, Ledger, StepMemory
from minigpt.memory.figures.svg import Drawing, Figure
from minigpt.memory.gpus import CONTEXT, GPUS
from minigpt.memory.plan import TrainingPlan
from minigpt.memory.predicted.step import predict
from minigpt.memory.units import gb

CARD, MODEL = "A100 80GB", "llama-7b"
PLAN = TrainingPlan(batch=4, seq_len=512, precision="bf16")  # lesson 01's, with the loop that keeps the loss alone
TOP, TALL, LEFT, WIDE, APART = 112, 470, 20, 600, 200
ORDER = ("weights", "optimizer", "activations", "gradients", "temporary")  # what stays lies at the bottom


def card_ledger() -> Figure:
    drawing, room = Drawing(640), GPUS[CARD].vram
    scale = TALL / room
    drawing.heading("One card, three instants of a training step", "LLaMA-7B, all in bfloat16, AdamW, 4 × 512 tokens")
    drawing.text(LEFT, TOP - 18, f"{CARD}: it holds {gb(room, 1)}", at="start", bold=True)
    drawing.rect(LEFT, TOP, WIDE, TALL, "panel", radius=6, edge=True)
    told = []
    for i, (name, ledger) in enumerate(instants(predict(MODEL, PLAN)).items()):
        x, bottom = LEFT + 12 + i * (APART - 4), float(TOP + TALL)
        context = CONTEXT * scale
        drawing.rect(x, bottom - context, APART - 20, context, "context", radius=0)
        bottom -= context
        for bucket in ORDER:
            tall = getattr(ledger, bucket) * scale
            if tall < 1:
                continue
            drawing.rect(x, bottom - tall, APART - 20, tall - 1, bucket, radius=0)
            words = f"{bucket} {gb(getattr(ledger, bucket), 1)}"
            drawing.text(x + (APART - 20) / 2, bottom - tall / 2, words, bucket, size=15)
            bottom -= tall
        free = room - CONTEXT - ledger.total
        drawing.text(x + (APART - 20) / 2, (TOP + bottom) / 2, f"free {gb(free, 1)}", "panel", size=15, soft=True)
        drawing.text(x + (APART - 20) / 2, TOP + TALL + 22, name, bold=True)
        drawing.text(x + (APART - 20) / 2, TOP + TALL + 44, f"{gb(ledger.total, 1)} of tensors", size=15, soft=True)
        parts = [f"{bucket} {gb(n, 1)}" for bucket, n in ledger.as_dict().items() if n * scale >= 1]
        told.append(f"{name}: {', '.join(parts)}, free {gb(free, 1)}")
    y = TOP + TALL + 84
    drawing.rect(LEFT, y - 9, 26, 18, "context", radius=3)
    drawing.text(LEFT + 36, y, f"at the bottom: CUDA's context, about {gb(CONTEXT, 1)}", at="start", size=15)
    alt = f"An {CARD} of {gb(room, 1)} as a container, at three instants of a step of LLaMA-7B in bfloat16. "
    return drawing.finish(y + 30, f"{alt}{'; '.join(told)}. CUDA's context lies at the bottom, about {gb(CONTEXT, 1)}.")


def instants(step: StepMemory) -> dict[str, Ledger]:
    """The end of forward; backward's first instant with no more activations than gradients; the step's fullest."""
    points = step.timeline()
    forward = [ledger for phase, ledger in points if phase == "forward"][-1]
    middle = next(m for phase, m in points if phase == "backward" and m.activations <= m.gradients)
    fullest = max((ledger for phase, ledger in points if phase == "step"), key=lambda ledger: ledger.total)
    assert set(ORDER) == set(BUCKETS)
    return {"forward ends": forward, "within backward": middle, "the optimizer's step": fullest}
