"""The blocks of a llama and of MiniGPT, as data flows, each edge with its shape or with what it keeps for backward.

What is kept, and its bytes, come from ``minigpt.memory.saved``: the list of one block on the predictor's tape, in its
order. ``EDGES`` names the edge of each large storage, with an operation that must be among those that saved it, so a
block that saves something else does not get a wrong picture but an error.
"""

from __future__ import annotations

from collections.abc import Sequence

from minigpt.memory.families import Architecture
from minigpt.memory.figures.svg import Drawing, Figure
from minigpt.memory.plan import TrainingPlan
from minigpt.memory.saved import Saved, saved_by_block
from minigpt.model import GPTConfig

WIDTH, SPINE, MIDDLE, COLUMNS = 640, 56, 350, (200, 350, 500)
BOX, GAP = 46, 52  # heights: of a box, of an edge between two
NANO = GPTConfig.preset("nano")
LLAMA_EDGES = (
    ("x", "power"), ("length", "multiply attn_norm"), ("h", "linear q"), ("q", "attention"), ("k", "attention"),
    ("v", "attention"), ("y", "linear o"), ("x2", "power"), ("length2", "multiply mlp_norm"), ("h2", "linear gate"),
    ("gate", "silu"), ("silu", "multiply"), ("up", "multiply"), ("product", "linear down"),
)  # fmt: skip
MINIGPT_EDGES = (
    ("x", "layer_norm attn_norm"), ("h", "linear q"), ("q", "attention"), ("k", "attention"), ("v", "attention"),
    ("y", "linear o"), ("x2", "layer_norm mlp_norm"), ("h2", "linear up"), ("up", "gelu"), ("product", "linear down"),
)  # fmt: skip


def llama_block() -> Figure:
    """The shapes alone: what a reader needs before counting anything."""
    a = Architecture.of("llama-7b")
    drawing = Drawing(WIDTH)
    drawing.heading("One block of a llama, from top to bottom", "in boxes: the parameters; on lines: numbers per token")
    edges = dict.fromkeys(("x", "h", "q", "k", "v", "y", "o", "x2", "h2", "down"), "C")
    edges |= dict.fromkeys(("gate", "silu", "up", "product"), "I")
    inside = dict.fromkeys("qkvo", "C × C") | {"norm": "C", "gate": "C × I", "up": "C × I", "down": "I × C"}
    inside |= {"attention": "each token looks at the tokens up to it"}
    y = _draw(Flow(drawing, edges, {}, inside, "panel"), gated=True)
    drawing.text(20, y + 36, f"LLaMA-7B: C = {a.n_embd:,}, I = {a.n_inner:,}, and {a.n_layer} such blocks.", at="start")
    return drawing.finish(
        y + 64,
        "One block of a llama. Its input goes through a norm to q, k and v, matrices of C times C, which meet in "
        "attention; o brings the result back, and it is added to the input. The sum goes through a second norm to "
        "gate and up, matrices of C times I; SiLU of the gate's output is multiplied with up's; down, I times C, "
        "brings the product back, and it is added, too.",
    )


def llama_block_saved() -> Figure:
    """The same block in bfloat16, each edge with the bytes per token that backward needs."""
    a, tokens = Architecture.of("llama-7b"), 2 * 512
    rows = saved_by_block("llama-7b", TrainingPlan(batch=2, seq_len=512, precision="bf16"))
    names = {"C": a.n_embd, "I": a.n_inner}
    edges, total, rest = _edges(rows, LLAMA_EDGES, tokens, names)
    drawing = Drawing(WIDTH)
    drawing.heading(
        "What one block of LLaMA-7B keeps for backward", "bfloat16; bytes per token, in symbols and counted"
    )
    notes = {"x": "a float32 copy", "length": "brought to length 1", "h": "one for all three", "h2": "one for both"}
    notes |= {"x2": notes["x"], "length2": notes["length"]}
    inside = {"q": "then turned", "k": "then turned"}
    y = _draw(Flow(drawing, edges, notes, inside, "activations"), gated=True)
    C, I = (sum(n for n, name in map(_split, edges.values()) if name == letter) for letter in "CI")  # noqa: E741
    assert rest == 4 * (2 + a.n_head)
    y = _sum(drawing, y + 36, f"{C}C + {I}I = {total:,} bytes per token", f"C = {a.n_embd:,}, I = {a.n_inner:,}",
         f"and {rest} more: 4 for each norm, and for each of {a.n_head} heads")  # fmt: skip
    return drawing.finish(
        y,
        f"One block of LLaMA-7B in bfloat16, with the bytes per token that each edge keeps. {_told(edges)} "
        f"What o and down put out is not kept. Together {C}C + {I}I = {total:,} bytes per token.",
    )


def minigpt_block() -> Figure:
    """MiniGPT's block in float32, in units of one residual stream, u = 4C bytes per token."""
    C, tokens = NANO.n_embd, 16 * 256
    rows = saved_by_block(NANO, TrainingPlan(batch=16, seq_len=256))
    edges, total, rest = _edges(rows, MINIGPT_EDGES, tokens, {"u": 4 * C})
    drawing = Drawing(WIDTH)
    drawing.heading(
        "What one block of MiniGPT keeps for backward", "float32; u = 4C bytes per token, and counted for nano"
    )
    y = _draw(Flow(drawing, edges, {"h": "one for all three"}, {}, "activations"), gated=False)
    units = sum(_split(words)[0] for words in edges.values())
    assert rest == 16 + 4 * NANO.n_head
    y = _sum(drawing, y + 36, f"{units}u = {total:,} bytes per token", f"nano: C = {C}, so u = {4 * C:,}",
         f"and {rest} more: 8 for each norm, 4 for each of {NANO.n_head} heads")  # fmt: skip
    return drawing.finish(
        y,
        "One block of MiniGPT in float32, with what each edge keeps for backward, in units u of one residual stream. "
        f"{_told(edges)} What o_proj and down_proj put out is not kept. Together {units}u = {total:,} bytes per token.",
    )


def _edges(
    rows: Sequence[Saved], named: Sequence[tuple[str, str]], tokens: int, units: dict[str, int]
) -> tuple[dict[str, str], int, int]:
    """The label of each edge, the bytes per token of all of them, and those of the small rest."""
    counted = [row for row in rows if row.counted]
    least = min(units.values())
    large = [row for row in counted if row.nbytes >= least * tokens]
    labels = {}
    for row, (name, by) in zip(large, named, strict=True):
        if by not in row.by:
            raise ValueError(f"edge {name!r} is saved by {row.by}, not by {by!r}: the block is not the one drawn here")
        labels[name] = symbol(row.nbytes // tokens, units)
    total = sum(row.nbytes for row in large) // tokens
    return labels, total, sum(row.nbytes for row in counted) // tokens - total


def symbol(nbytes: int, units: dict[str, int]) -> str:
    """Bytes as a small multiple of one of the units, and counted: "4C = 16,384"."""
    for name, unit in units.items():
        times, left = divmod(nbytes, unit)
        if not left and 0 < times <= 8:
            return f"{times if times > 1 or name != 'u' else ''}{name} = {nbytes:,}"
    raise ValueError(f"nbytes is {nbytes}; allowed: one to eight times one of {units}")


def _split(words: str) -> tuple[int, str]:
    """ "4C = 16,384" -> 4, "C"."""
    symbol = words.split(" = ")[0]
    return int(symbol[:-1] or 1), symbol[-1]


def _told(edges: dict[str, str]) -> str:
    """The edges in words."""
    said = {"x": "the input", "length": "brought to length 1", "h": "the norm's output", "y": "attention's result",
            "x2": "the sum", "length2": "brought to length 1", "h2": "the second norm's output", "silu": "its SiLU",
            "product": "what down reads"}  # fmt: skip
    return (
        "; ".join(f"{said.get(name, name)} {words.split(' = ')[0]}" for name, words in edges.items()).capitalize() + "."
    )


def _sum(drawing: Drawing, y: float, total: str, sizes: str, rest: str) -> float:
    """What all edges come to, at the foot; returns where the figure ends."""
    drawing.chip(46, y, "kept", "activations")
    drawing.text(84, y, total, at="start", bold=True, size=17)
    drawing.text(84, y + 26, sizes, at="start")
    drawing.text(84, y + 51, rest, at="start", soft=True, size=15)
    return y + 78


class Flow:
    """Draws a block from top to bottom.

    ``edges``: the label of each edge; ``notes``: what stands beside it; ``inside``: the second line in a box.
    """

    def __init__(
        self, drawing: Drawing, edges: dict[str, str], notes: dict[str, str], inside: dict[str, str], fill: str
    ) -> None:
        self.drawing, self.edges, self.notes, self.inside, self.fill = drawing, edges, notes, inside, fill

    def box(self, x: float, y: float, w: float, name: str, h: float = BOX) -> None:
        self.drawing.box(x, y, w, h, name, self.inside.get(name, ""))

    def label(self, x: float, y: float, edge: str, beside: bool = False) -> None:
        """The label of an edge at (x, y), with its note above it or, ``beside``, on its right."""
        note = self.notes.get(edge, "")
        if words := self.edges.get(edge):
            self.drawing.chip(x, y, words, self.fill)
        else:
            self.drawing.rect(x - 38, y - 11, 76, 22, "paper", radius=4)
            self.drawing.text(x, y, "not kept", size=14, soft=True)
        if beside and note:
            self.drawing.text(x + 72, y, note, at="start", size=14, soft=True)
        elif note:
            self.drawing.text(x, y - 24, note, size=14, soft=True)

    def down(self, x: float, y: float, edge: str, arrow: bool = True) -> float:
        """An edge straight down with its label; returns where it ends."""
        self.drawing.line([(x, y), (x, y + GAP)], arrow)
        self.label(x, y + GAP / 2 - 6, edge, beside=True)
        return y + GAP

    def fan(self, y: float, columns: Sequence[float], names: Sequence[str], edge: str) -> float:
        """An edge that goes to several boxes side by side; returns where these end."""
        across = self.down(MIDDLE, y, edge, arrow=False)
        self.drawing.line([(columns[0], across), (columns[-1], across)], arrow=False)
        for x, name in zip(columns, names, strict=True):
            self.drawing.line([(x, across), (x, across + 18)])
            self.box(x, across + 18 + BOX / 2, 116, name)
        return across + 18 + BOX

    def branch(self, y: float, edge: str, inside: str) -> float:
        """From the residual stream to a norm; returns where that ends."""
        self.drawing.line([(SPINE, y), (MIDDLE - 65, y)])
        self.label(168, y, edge)
        self.box(MIDDLE, y, 130, "norm")
        if inside in self.edges:
            self.drawing.line([(MIDDLE + 65, y), (MIDDLE + 150, y)], arrow=False)
            self.label(MIDDLE + 150, y, inside)
        return y + BOX / 2

    def back(self, y: float, name: str, edge: str) -> float:
        """The last box of a branch, whose top is at y, and the way back; returns the height of the addition."""
        y += BOX / 2
        self.box(MIDDLE, y, 130, name)
        self.drawing.line([(MIDDLE - 65, y), (SPINE + 13, y)])
        self.label(178, y, edge)
        return y

    def gated(self, y: float) -> float:
        """A llama's MLP as far as down; returns where its last edge ends."""
        left, right = 235, 465
        y = self.fan(y, (left, right), ("gate", "up"), "h2")
        silu = self.down(left, y, "gate")
        across = silu + 34 + GAP + 4
        self.drawing.line([(left, silu + 34), (left, across), (MIDDLE - 13, across)])
        self.box(left, silu + 17, 116, "SiLU", h=34)
        self.drawing.line([(right, y), (right, across), (MIDDLE + 13, across)])
        self.label(left, silu + 34 + GAP / 2 - 4, "silu")
        self.label(right, silu + 34 + GAP / 2 - 4, "up")
        self.drawing.node(MIDDLE, across, "×")
        return self.down(MIDDLE, across + 13, "product")

    def plain(self, y: float) -> float:
        """MiniGPT's."""
        for edge, name in (("h2", "up_proj"), ("up", "GELU")):
            y = self.down(MIDDLE, y, edge)
            self.box(MIDDLE, y + BOX / 2, 130, name)
            y += BOX
        return self.down(MIDDLE, y, "product")


def _draw(flow: Flow, gated: bool) -> float:
    """The block: the residual stream on the left, and its two branches; returns where it ends.

    ``gated``: a llama, with an MLP of three matrices; else MiniGPT.
    """
    drawing = flow.drawing
    end = "" if gated else "_proj"
    top = 88
    drawing.text(SPINE + 14, top, "the block's input", at="start", size=15, soft=True)
    y = flow.branch(top + 60, "x", "length")
    y = flow.fan(y, COLUMNS, [letter + end for letter in "qkv"], "h")
    below = max(flow.down(x, y, edge) for x, edge in zip(COLUMNS, "qkv", strict=True))
    flow.box(MIDDLE, below + BOX / 2, 416, "attention")
    first = flow.back(flow.down(MIDDLE, below + BOX, "y"), "o" + end, "o")
    y = flow.branch(first + BOX + 34, "x2", "length2")
    last = flow.back((flow.gated if gated else flow.plain)(y), "down" + end, "down")
    for start, stop in ((top - 10, first - 13), (first + 13, last - 13), (last + 13, last + 48)):
        drawing.line([(SPINE, start), (SPINE, stop)])
    drawing.node(SPINE, first, "+")
    drawing.node(SPINE, last, "+")
    drawing.text(20, last + 61, "to the next block", at="start", size=15, soft=True)
    return last + 68
