"""NF4's blocks: what 64 weights become, and what double quantization makes of 256 such blocks."""

from __future__ import annotations

from minigpt.memory.engine.layers import BLOCK, NESTED_BLOCK, quantized_bytes
from minigpt.memory.figures.svg import Drawing, Figure


def nf4() -> Figure:
    codes, scale = quantized_bytes(BLOCK, double=False, tables=False)
    many, scales, scale_of_scales, offset = quantized_bytes(BLOCK * NESTED_BLOCK, double=True, tables=False)
    plain, double = 8 * (codes + scale) / BLOCK, 8 * (many + scales + scale_of_scales) / (BLOCK * NESTED_BLOCK)
    drawing = Drawing(640)
    drawing.heading(
        "NF4, block by block", f"{BLOCK} weights share one absmax; {NESTED_BLOCK} absmax values share another"
    )

    # ---- one block
    drawing.text(20, 96, f"one block: {BLOCK} weights", at="start", bold=True)
    for i in range(BLOCK):
        drawing.rect(20 + i % 32 * 18.75, 114 + i // 32 * 20, 16, 16, "weights", radius=2)
    drawing.text(20, 172, f"{2 * BLOCK} bytes in bfloat16", at="start", size=15, soft=True)
    drawing.line([(90, 192), (90, 236)])
    drawing.text(102, 212, "each: the nearest of 16 values", at="start", size=15)
    drawing.line([(545, 192), (545, 236)])
    drawing.text(533, 212, "the largest |w|", at="end", size=15)

    for i in range(codes):
        drawing.rect(20 + i % 16 * 26, 246 + i // 16 * 24, 24, 20, "nf4", radius=2)
        drawing.rect(31.5 + i % 16 * 26, 246 + i // 16 * 24, 1, 20, "paper", radius=0)
    drawing.text(20, 308, f"{codes} bytes: two codes of 4 bits in each", at="start")
    drawing.rect(500, 246, 96, 44, "context", radius=4)
    drawing.text(548, 268, "absmax", "context", bold=True)
    drawing.text(548, 308, f"{scale} bytes, float32")
    drawing.chip(20, 346, f"{codes} + {scale} = {codes + scale} bytes: {plain:g} bits per weight", "panel", at="start")

    # ---- double quantization
    drawing.line([(20, 384), (620, 384)], arrow=False, dashed=True)
    drawing.text(20, 412, f"double quantization: the absmax values of {NESTED_BLOCK} blocks", at="start", bold=True)
    for i in range(32):
        drawing.rect(20 + i * 13, 432, 11, 30, "context", radius=2)
    drawing.text(446, 447, "…", size=20)
    drawing.text(466, 447, f"{NESTED_BLOCK * scale:,} bytes", at="start")
    drawing.line([(90, 470), (90, 522)])
    drawing.text(102, 491, "less their mean, in 8 bits each", at="start", size=15)
    drawing.line([(545, 470), (545, 518)])
    drawing.text(533, 491, "the largest of these", at="end", size=15)
    for i in range(32):
        drawing.rect(20 + i * 13, 527, 11, 8, "context", radius=2)
    drawing.text(446, 526, "…", size=20)
    drawing.text(20, 556, f"{scales} bytes: one for each block", at="start")
    drawing.rect(500, 520, 96, 24, "context", radius=4)
    drawing.text(548, 532, "absmax", "context", bold=True, size=15)
    drawing.text(548, 562, f"{scale_of_scales} bytes, float32")
    sizes = f"{NESTED_BLOCK} × {codes} + {scales} + {scale_of_scales} bytes"
    drawing.chip(20, 600, f"{sizes}: {double:.3f} bits per weight", "panel", at="start")
    drawing.text(20, 638, f"and their mean, {offset} bytes for the whole matrix", at="start", size=15, soft=True)
    return drawing.finish(
        664,
        f"A block of {BLOCK} weights becomes {codes} bytes, two codes of 4 bits in each, and an absmax of {scale} "
        f"bytes: {plain:g} bits per weight. Double quantization: the absmax values of {NESTED_BLOCK} blocks become "
        f"{scales} bytes, one for each, and one absmax of {scale_of_scales} bytes: {double:.3f} bits per weight.",
    )
