"""The life of a step: in which phase each bucket is born, grows, and dies. Drawn from ``predict``'s events.

Each bucket has a lane of its own, as high as its own largest, which is named: their shapes compare, not their heights.
Time is events, and each phase has the width that a reader needs to see it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from minigpt.memory.figures.svg import Drawing, Figure, Point
from minigpt.memory.plan import TrainingPlan
from minigpt.memory.predicted.step import predict
from minigpt.memory.units import mb
from minigpt.model import GPTConfig

PLAN = TrainingPlan(batch=16, seq_len=256)  # lesson 02's
PHASES = {"forward": 190, "backward": 190, "step": 80}
LEFT, END, TOP, LANE, APART = 20, 480, 112, 54, 92
COLORED = {"together": "context"}
WORDS = {
    "weights": "there before, and after",
    "optimizer": "AdamW's two moments: there before, and after",
    "activations": "born in forward, let go in backward",
    "gradients": "born in backward, die in zero_grad",
    "temporary": "born and gone within an operation or two",
}


def step_life() -> Figure:
    step = predict(GPTConfig.preset("nano"), PLAN)
    drawing = Drawing(640)
    drawing.heading(
        "The life of a training step", "MiniGPT nano, float32, AdamW, 16 × 256 tokens; each lane has its own scale"
    )
    starts = {"forward": LEFT, "backward": LEFT + PHASES["forward"], "step": END - PHASES["step"]}
    for phase, x in starts.items():
        drawing.rect(x, TOP - 30, PHASES[phase] - 4, 26, "panel", radius=4)
        drawing.text(x + PHASES[phase] / 2 - 2, TOP - 17, phase, "panel", bold=True)
    points = step.timeline()
    times = _times([phase for phase, _ in points], starts)
    told, floor = [], TOP
    for i, (bucket, words) in enumerate({**WORDS, "together": f"fullest in {step.peak_at}"}.items()):
        floor = TOP + 30 + LANE + i * APART
        sizes = [ledger.total if bucket == "together" else getattr(ledger, bucket) for _, ledger in points]
        largest = max(sizes)
        drawing.text(LEFT, floor - LANE - 14, bucket, at="start", bold=True)
        drawing.text(LEFT + 110, floor - LANE - 14, words, at="start", size=15, soft=True)
        drawing.shape(_outline(times, [LANE * n / largest for n in sizes], floor), COLORED.get(bucket, bucket))
        drawing.line([(LEFT, floor), (END - 4, floor)], arrow=False)
        for phase in ("backward", "step"):
            x = starts[phase] - 2
            drawing.line([(x, floor - LANE), (x, floor)], arrow=False, dashed=True)
        drawing.text(END + 10, floor - LANE + 10, "largest", at="start", size=14, soft=True)
        drawing.text(END + 10, floor - LANE + 32, mb(largest), at="start", bold=True)
        told.append(f"{bucket} {words}, at most {mb(largest)}")
    return drawing.finish(floor + 30, f"One training step of MiniGPT nano, a lane for each bucket: {'; '.join(told)}.")


def _times(phases: Sequence[str], starts: dict[str, int]) -> list[float]:
    """Where each event stands: evenly apart within its phase."""
    count, seen, times = Counter(phases), Counter[str](), []
    for phase in phases:
        times.append(round(starts[phase] + (PHASES[phase] - 4) * seen[phase] / max(count[phase] - 1, 1), 1))
        seen[phase] += 1
    return times


def _outline(times: Sequence[float], heights: Sequence[float], floor: float) -> list[Point]:
    """The area below steps: each height lasts until the next event. What changes nothing is left out."""
    points, before = [(times[0], floor), (times[0], floor - heights[0])], heights[0]
    for x, high in zip(times, heights, strict=True):
        if high != before:
            points += [(x, round(floor - before, 1)), (x, round(floor - high, 1))]
            before = high
    return [*points, (END - 4, floor - before), (END - 4, floor)]
