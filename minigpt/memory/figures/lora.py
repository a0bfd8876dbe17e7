"""LoRA: a frozen matrix and, beside it, two thin ones that are trained; shapes, counts and bytes."""

from __future__ import annotations

from minigpt.memory.families import Architecture
from minigpt.memory.figures.svg import Drawing, Figure
from minigpt.memory.plan import PRECISIONS
from minigpt.memory.units import readable

MODEL, RANK = "llama-7b", 8


def lora() -> Figure:
    [matrix] = [tensor for tensor in Architecture.of(MODEL).block_tensors() if tensor.name == "q"]
    n_out, n_in = matrix.shape
    frozen, trained = n_out * n_in, RANK * (n_in + n_out)
    drawing = Drawing(640)
    drawing.heading(
        "LoRA: W stays, A and B are trained", f"the numbers: q of LLaMA-7B, n_in = n_out = {n_in:,}, r = {RANK}"
    )

    # x on the left, y on the right; W above, A and B below
    drawing.line([(66, 182), (150, 182)])
    drawing.line([(66, 182), (66, 400), (150, 400)])
    drawing.text(42, 182, "x", bold=True, size=18)
    drawing.text(42, 204, "n_in", size=14, soft=True)

    drawing.rect(152, 92, 180, 180, "weights", radius=3)
    drawing.hatch(152, 92, 180, 180)
    drawing.chip(242, 182, "W, frozen", "weights", size=16)
    drawing.text(350, 110, "n_out × n_in", at="start", bold=True)
    drawing.text(350, 134, f"{frozen:,} numbers", at="start")
    drawing.text(350, 226, "no gradient,", at="start", size=15, soft=True)
    drawing.text(350, 247, "no optimizer state", at="start", size=15, soft=True)
    drawing.line([(332, 182), (575, 182)])

    drawing.rect(152, 378, 180, 44, "weights", radius=3)
    drawing.text(242, 400, "A", "weights", bold=True, size=18)
    drawing.text(242, 444, f"r × n_in = {RANK * n_in:,}", size=15)
    drawing.text(242, 466, "starts random", size=14, soft=True)
    drawing.line([(332, 400), (424, 400)])
    drawing.text(378, 384, "r", bold=True)
    drawing.rect(426, 310, 44, 180, "weights", radius=3)
    drawing.text(448, 400, "B", "weights", bold=True, size=18)
    drawing.text(448, 508, f"n_out × r = {RANK * n_out:,}", size=15)
    drawing.text(448, 530, "starts at zero", size=14, soft=True)
    drawing.line([(470, 400), (588, 400), (588, 196)])
    drawing.chip(540, 400, "times s", "panel")

    drawing.node(588, 182, "+")
    drawing.line([(588, 169), (588, 122)])
    drawing.text(588, 104, "y", bold=True, size=18)

    adapter = PRECISIONS["fp32"].bytes_per_parameter
    base = PRECISIONS["bf16"].weights
    drawing.text(
        20, 572, f"trained: {trained:,} numbers, {trained / frozen:.2%} of W's", at="start", bold=True, size=17
    )
    drawing.text(20, 600, f"W in bfloat16: {readable(base * frozen)}", at="start")
    drawing.text(
        20, 626, f"A and B in float32, with gradients and AdamW's moments: {readable(adapter * trained)}", at="start"
    )
    drawing.text(20, 652, f"(A and B are drawn too thick: r is {RANK} of {n_in:,}.)", at="start", size=15, soft=True)
    return drawing.finish(
        680,
        f"LoRA. The input x goes two ways: through W, n_out times n_in, {frozen:,} numbers, hatched because it is "
        "frozen, without gradient and optimizer state; and through A, r times n_in, then B, n_out times r, then times "
        f"s. The two are added to y. For q of LLaMA-7B and r = {RANK}, A and B have {trained:,} numbers, "
        f"{trained / frozen:.2%} of W's.",
    )
