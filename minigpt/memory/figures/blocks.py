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
from minigpt.memory.units import mb
from minigpt.model import GPTConfig

WIDTH, SPINE, MIDDLE, COLUMNS = 640, 56, 350, (200, 350, 500)
BOX, GAP = 46, 52  # heights: of a box, of an edge between two
NANO = GPTConfig.preset("nano")
COPY, LENGTH = "a float32 copy", "brought to length 1"
LLAMA_EDGES = (
    ("x", "power"), ("length", "multiply attn_norm"), ("h", "linear q"), ("q", "attention"), ("k", "attention"),
    ("v", "attention"), ("y", "linear o"), ("x2", "power"), ("length2", "multiply mlp_norm"), ("h2", "linear gate"),
    ("gate", "silu"), ("silu", "multiply"), ("up", "multiply"), ("product", "linear down"),
)  # fmt: skip
LORA_EDGES = (
    ("x", "power"), ("q.A", "linear q.A"), ("k.A", "linear k.A"), ("v.A", "linear v.A"), ("q", "attention"),
    ("k", "attention"), ("v", "attention"), ("y", "attention"), ("o.A", "linear o.A"), ("x2", "power"),
    ("gate.A", "linear gate.A"), ("gate", "silu"), ("up.A", "linear up.A"), ("silu", "multiply"), ("up", "multiply"),
    ("product", "linear down.A"),
)  # fmt: skip
AUTOCAST_EDGES = (
    ("x", "power"), ("length", "multiply attn_norm"), ("q.A", "linear q"), ("k.A", "linear k"), ("v.A", "linear v"),
    ("q", "attention"), ("k", "attention"), ("v", "attention"), ("y", "linear o"), ("x2", "power"),
    ("length2", "multiply mlp_norm"), ("gate.A", "linear gate"), ("gate", "silu"), ("up.A", "linear up"),
    ("silu", "multiply"), ("up", "multiply"), ("product", "linear down"),
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
    notes = {"x": COPY, "x2": COPY, "h": "one for all three", "h2": "one for both", "length": LENGTH, "length2": LENGTH}
    return _llama_kept(
        "What one block of LLaMA-7B keeps for backward", "bfloat16; bytes per token, in symbols and counted",
        TrainingPlan(batch=2, seq_len=512, precision="bf16"), LLAMA_EDGES, notes, dict.fromkeys("qk", "then turned"),
        "4 for each norm and each head",
        "One block of LLaMA-7B in bfloat16, with the bytes per token that each edge keeps for backward.",
    )  # fmt: skip


def llama_block_lora() -> Figure:
    """The same with float32 adapters on all seven matrices: each keeps a copy of what it reads."""
    plan = TrainingPlan(batch=2, seq_len=512, precision="bf16", method="lora")
    notes = {"x": COPY, "x2": COPY, "o.A": COPY, "product": COPY, "h": COPY + " for each:", "h2": COPY + " for each:"}
    inside = dict.fromkeys(("q", "k", "v", "o", "gate", "up", "down"), "W and B A") | {"norm": "frozen"}
    return _llama_kept(
        "LLaMA-7B's block, LoRA on its seven matrices", "bfloat16 base, float32 adapters; bytes per token", plan,
        LORA_EDGES, notes, inside, f"4 for each norm and head, 4r for each adapter (r = {plan.rank})",
        "One block of LLaMA-7B in bfloat16 with float32 adapters on its seven matrices, with the bytes per token that "
        "each edge keeps: each adapter keeps a float32 copy of what it reads, and the 16-bit inputs are not kept.",
    )  # fmt: skip


def llama_block_autocast() -> Figure:
    """The same over float32 weights under autocast: the stream is float32, and each matrix casts what it reads."""
    a, plan = Architecture.of("llama-7b"), TrainingPlan(batch=2, seq_len=512, precision="bf16-autocast")
    notes = dict.fromkeys(("h", "h2"), "a 16-bit copy for each:") | {"length": LENGTH, "length2": LENGTH}
    copies = 2 * sum(t.shape[0] * t.shape[1] for t in a.block_tensors() if t.kind == "linear")
    return _llama_kept(
        "LLaMA-7B's block under autocast", "float32 weights, bfloat16 products; bytes per token", plan, AUTOCAST_EDGES,
        notes, dict.fromkeys("qk", "then turned"),
        f"norms and heads; once {mb(copies, 0)}: weights in 16 bits",
        "One block of LLaMA-7B with float32 weights under bfloat16 autocast, with the bytes per token that each edge "
        "keeps: the residual stream in float32, and a 16-bit copy of its input for each matrix that reads a norm.",
    )  # fmt: skip


def _llama_kept(
    title: str, line: str, plan: TrainingPlan, named: Sequence[tuple[str, str]], notes: dict[str, str],
    inside: dict[str, str], small: str, alt: str,
) -> Figure:  # fmt: skip
    """A block of LLaMA-7B under a plan. ``small`` says what the rest is that no edge shows."""
    a = Architecture.of("llama-7b")
    edges, total, rest = _edges(saved_by_block("llama-7b", plan), named, plan.tokens, {"C": a.n_embd, "I": a.n_inner})
    drawing = Drawing(WIDTH)
    drawing.heading(title, line)
    y = _draw(Flow(drawing, edges, notes, inside, "activations"), gated=True)
    C, I = (sum(n for n, name in map(_split, edges.values()) if name == letter) for letter in "CI")  # noqa: E741
    together = f"{C}C + {I}I = {total:,} bytes per token"
    y = _sum(drawing, y + 36, together, f"C = {a.n_embd:,}, I = {a.n_inner:,}", f"and {rest} more: {small}")
    return drawing.finish(y, f"{alt} {_told(edges)} What o and down put out is not kept. Together {together}.")


def minigpt_block() -> Figure:
    """MiniGPT's block in float32, in units of one residual stream, u = 4C bytes per token."""
    C, plan = NANO.n_embd, TrainingPlan(batch=16, seq_len=256)
    edges, total, rest = _edges(saved_by_block(NANO, plan), MINIGPT_EDGES, plan.tokens, {"u": 4 * C})
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
    counted = [row for row in rows if row.counted and not row.made_by[1].startswith("cast ")]  # no copy of a weight
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
            "x2": "the sum", "length2": "brought to length 1", "h2": "the second norm's output",
            "gate": "gate's output", "silu": "its SiLU", "up": "up's output", "product": "what down reads"}  # fmt: skip
    names = [said.get(edge, edge.replace(".A", "'s copy")) for edge in edges]
    told = [f"{name} {words.split(' = ')[0]}" for name, words in zip(names, edges.values(), strict=True)]
    return f"Kept: {'; '.join(told)}."


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
        top = across + (18 if f"{names[0]}.A" not in self.edges else GAP + 4)
        for x, name in zip(columns, names, strict=True):
            self.drawing.line([(x, across), (x, top)])
            if f"{name}.A" in self.edges:
                self.drawing.chip(x, across + 26, self.edges[f"{name}.A"], self.fill)
            self.box(x, top + BOX / 2, 116, name)
        return top + BOX

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
    copied = "o.A" in flow.edges
    y = flow.down(MIDDLE, below + BOX, "y", arrow=not copied)
    y = flow.down(MIDDLE, y, "o.A") if copied else y
    first = flow.back(y, "o" + end, "o")
    y = flow.branch(first + BOX + 34, "x2", "length2")
    last = flow.back((flow.gated if gated else flow.plain)(y), "down" + end, "down")
    for start, stop in ((top - 10, first - 13), (first + 13, last - 13), (last + 13, last + 48)):
        drawing.line([(SPINE, start), (SPINE, stop)])
    drawing.node(SPINE, first, "+")
    drawing.node(SPINE, last, "+")
    drawing.text(20, last + 61, "to the next block", at="start", size=15, soft=True)
    return last + 68
