"""Six number formats, bit by bit: the widths of their three fields, from which all else follows."""

from __future__ import annotations

from minigpt.memory.figures.svg import Drawing, Figure
from minigpt.precision.formats import FORMATS, Format

CELL, GAP, ROW = 18, 1, 62
NAMES = {"e5m2": "fp8 e5m2", "e4m3": "fp8 e4m3"}


def number_formats() -> Figure:
    drawing = Drawing(640)
    drawing.heading("Six formats, bit by bit", "the exponent sets the range, the mantissa how finely it is divided")
    x = 20.0
    for field in ("sign", "exponent", "mantissa"):
        drawing.rect(x, 72, 16, 16, field, radius=2)
        drawing.text(x + 24, 80, field, at="start", size=15)
        x += 130
    said = []
    for i, (name, form) in enumerate(FORMATS.items()):
        y = 118 + i * ROW
        drawing.text(20, y, NAMES.get(name, name), at="start", bold=True)
        drawing.text(120, y, _widths(form), at="start", size=15, soft=True)
        for bit in range(8 * form.bytes):
            drawing.rect(20 + bit * (CELL + GAP), y + 14, CELL, 22, _field(form, bit), radius=2)
        said.append(f"{NAMES.get(name, name)}: {_widths(form)}")
    return drawing.finish(118 + len(FORMATS) * ROW, f"The bits of six number formats. {'. '.join(said)}.")


def _field(form: Format, bit: int) -> str:
    if bit >= form.bits:
        return "panel"
    return "sign" if bit == 0 else "exponent" if bit <= form.exponent else "mantissa"


def _widths(form: Format) -> str:
    unread = f"; {8 * form.bytes - form.bits} bits of a float32 are not read" if 8 * form.bytes > form.bits else ""
    return f"1 + {form.exponent} + {form.mantissa} = {form.bits} bits{unread}"
