"""A small vocabulary for drawn figures: boxes, chips, arrows and text on a ground of their own, as SVG.

Every figure has its own paper, so it is legible on any page, and two palettes: the second where the reader's system
asks for dark. Buckets have the colours of the plots, in both. Text is real text. What a text stands on is named
(``on``): its colour follows from that, by contrast. Lengths are in units of the viewBox.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from minigpt.memory.plots.style import COLORS, METHODS

MARK = "made by minigpt.memory.figures"
LIGHT = {"paper": "#ffffff", "panel": "#eef1f5", "ink": "#1b1f24", "soft": "#4d5661", "line": "#6b7580"}
DARK = {"paper": "#161b22", "panel": "#2a313b", "ink": "#e8ebef", "soft": "#b3bcc7", "line": "#8d98a5"}
BITS = {"sign": "#5d6673", "exponent": "#6A3D9A", "mantissa": "#56B4E9"}
FILLS = {**COLORS, "nf4": METHODS["nf4"], "context": "#5d6673", **BITS}  # the same on light and dark
FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif'
SIZE = 16  # of text, unless it says otherwise
HEAD = 9  # length of an arrow's head
Point = tuple[float, float]


@dataclass(frozen=True)
class Figure:
    """A drawn figure: its SVG, and what it shows in words."""

    svg: str
    alt: str

    def _repr_svg_(self) -> str:
        return self.svg


def luminance(color: str) -> float:
    """Relative luminance of "#rrggbb", as WCAG 2 defines it."""
    channels = (int(color[i : i + 2], 16) / 255 for i in (1, 3, 5))
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(part * share for part, share in zip(linear, (0.2126, 0.7152, 0.0722), strict=True))


def contrast(one: str, other: str) -> float:
    """WCAG's ratio of two colours: 1 for equal ones, 21 for black and white, 4.5 for legible text."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def on(fill: str) -> str:
    """Black or white, whichever is legible on a fill that is the same on light and dark."""
    return max(("#000000", "#ffffff"), key=lambda ink: contrast(ink, fill))


class Drawing:
    """A sheet of this width. Later things lie on earlier ones."""

    def __init__(self, width: float) -> None:
        self.width = width
        self.parts: list[str] = []

    def rect(self, x: float, y: float, w: float, h: float, fill: str, radius: float = 6, edge: bool = False) -> None:
        kind = f"{fill} edge" if edge else fill
        self.parts.append(f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="{radius:g}"/>')

    def hatch(self, x: float, y: float, w: float, h: float) -> None:
        """Frozen, as in the plots: white lines across."""
        self.parts.append(f'<rect fill="url(#frozen)" x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}"/>')

    def text(self, x: float, y: float, words: str, on: str = "paper", size: float = SIZE, at: str = "middle",
             bold: bool = False, soft: bool = False) -> None:  # fmt: skip
        """``words`` with their middle at height ``y``; ``at`` is start, middle or end of them at ``x``."""
        kind = " ".join([f"on-{on}", *["soft"] * soft, *["bold"] * bold])
        self.parts.append(
            f'<text class="{kind}" x="{x:g}" y="{y + 0.35 * size:g}" font-size="{size:g}" text-anchor="{at}">'
            f"{escape(words, quote=False)}</text>"
        )

    def box(self, x: float, y: float, w: float, h: float, name: str, note: str = "", fill: str = "panel") -> None:
        """A rectangle about (x, y), which is its middle, with a name and perhaps a second line."""
        self.rect(x - w / 2, y - h / 2, w, h, fill, edge=fill == "panel")
        self.text(x, y - 10 if note else y, name, fill, bold=True)
        if note:
            self.text(x, y + 11, note, fill, size=14, soft=fill == "panel")

    def chip(self, x: float, y: float, words: str, fill: str, size: float = 15, at: str = "middle") -> None:
        """A short label with a ground of its own, centred at (x, y), or with its start there."""
        w = text_width(words, size, bold=True) + 14
        x += w / 2 if at == "start" else 0
        self.rect(x - w / 2, y - 13, w, 26, fill, radius=13)
        self.text(x, y, words, fill, size=size, bold=True)

    def line(self, points: Sequence[Point], arrow: bool = True, dashed: bool = False) -> None:
        """A line through the points; an arrow's tip is the last of them."""
        *before, (x, y) = points
        if arrow:
            (x0, y0) = before[-1]
            length = ((x - x0) ** 2 + (y - y0) ** 2) ** 0.5
            dx, dy = (x - x0) / length, (y - y0) / length
            bx, by = x - HEAD * dx, y - HEAD * dy
            corners = [(x, y), (bx - 4.5 * dy, by + 4.5 * dx), (bx + 4.5 * dy, by - 4.5 * dx)]
            head = " ".join(f"{a:g},{b:g}" for a, b in corners)
            self.parts.append(f'<polygon class="line-fill" points="{head}"/>')
            x, y = bx + dx, by + dy
        way = " ".join(f"{a:g},{b:g}" for a, b in (*before, (x, y)))
        self.parts.append(f'<polyline class="line{" dashed" * dashed}" points="{way}"/>')

    def node(self, x: float, y: float, words: str) -> None:
        """A small operation in a circle: + or ×."""
        self.rect(x - 13, y - 13, 26, 26, "panel", radius=13, edge=True)
        self.text(x, y, words, "panel", size=19, bold=True)

    def shape(self, points: Iterable[Point], fill: str) -> None:
        """A filled area."""
        way = " ".join(f"{x:g},{y:g}" for x, y in points)
        self.parts.append(f'<polygon class="{fill}" points="{way}"/>')

    def heading(self, title: str, *lines: str) -> None:
        """At the top: what the figure shows."""
        self.text(20, 28, title, at="start", size=18, bold=True)
        for i, words in enumerate(lines):
            self.text(20, 52 + 21 * i, words, at="start", size=15, soft=True)

    def finish(self, height: float, alt: str) -> Figure:
        """The figure, of this height; ``alt`` says in words what it shows, without square brackets or line breaks."""
        inside = "\n".join(self.parts)
        size = f'width="{self.width:g}" height="{height:g}" viewBox="0 0 {self.width:g} {height:g}"'
        svg = (
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="alt">\n<!-- {MARK} -->\n'
            f'<title id="alt">{escape(alt, quote=False)}</title>\n<style>\n{_css()}\n</style>\n{PATTERN}\n'
            f'<rect class="paper frame" x="0.5" y="0.5" width="{self.width - 1:g}" height="{height - 1:g}" rx="8"/>\n'
            f"{inside}\n</svg>\n"
        )
        return Figure(svg, alt)


PATTERN = (
    '<defs><pattern id="frozen" width="9" height="9" patternUnits="userSpaceOnUse">'
    '<path d="M0,9 L9,0 M0,0 L9,9" stroke="#ffffff" stroke-opacity="0.55" stroke-width="1.2"/></pattern></defs>'
)


def _css() -> str:
    def palette(colors: dict[str, str]) -> list[str]:
        return [
            f".paper {{ fill: {colors['paper']}; }}",
            f".panel {{ fill: {colors['panel']}; }}",
            f".edge, .frame, .line {{ stroke: {colors['line']}; }}",
            f".line-fill {{ fill: {colors['line']}; }}",
            f".on-paper, .on-panel {{ fill: {colors['ink']}; }}",
            f".on-paper.soft, .on-panel.soft {{ fill: {colors['soft']}; }}",
        ]

    fills = [f".{name} {{ fill: {fill}; }} .on-{name} {{ fill: {on(fill)}; }}" for name, fill in FILLS.items()]
    shapes = [
        f"text {{ font-family: {FONT}; }}",
        ".bold { font-weight: 600; }",
        ".line { fill: none; stroke-width: 1.6; stroke-linejoin: round; }",
        ".dashed { stroke-dasharray: 5 4; }",
        ".edge { stroke-width: 1; }",
        ".frame { stroke-width: 1; stroke-opacity: 0.45; }",
    ]
    dark = "\n".join("  " + rule for rule in palette(DARK))
    return "\n".join([*shapes, *fills, *palette(LIGHT), f"@media (prefers-color-scheme: dark) {{\n{dark}\n}}"])


NARROW, WIDE = set(" .,:;'|()ijltfrI/-"), set("mwMW%")


def text_width(words: str, size: float, bold: bool = False) -> float:
    """About the width that ``words`` take, in a wide font: chips are made for it."""
    units = sum(0.42 if c in NARROW else 0.95 if c in WIDE else 0.66 for c in words)
    return size * units * (1.08 if bold else 1)
