"""An answer as HTML: a title with the finding, one bar against the card's frame, the verdict, the shell command.

The bar is SVG in percent of its width, so that it is as sharp and as legible on a phone. It has no colours but the
buckets' own: text and lines are the page's, so it is at home on a light page and on a dark one. Hatching means frozen
weights, as in every picture of the course.
"""

from __future__ import annotations

from html import escape

from minigpt.memory.buckets import BUCKETS
from minigpt.memory.calculator.choice import OFTEN, OWN, TEXTBOOK, Answer, Choice
from minigpt.memory.plan import TrainingPlan
from minigpt.memory.plots.style import COLORS
from minigpt.memory.units import GB, gb, gib, readable

STYLE = "max-width:52rem;font-size:14px;line-height:1.45"
SMALL = "font-size:12px;opacity:.8"
TOP, HEIGHT, MARGIN = 4, 54, 9  # pixels: of the card's frame, and of the bar inside it
HATCH = "ledger-hatch"
PATTERN = (  # the same in every picture of a page, so the same id will do
    f'<defs><pattern id="{HATCH}" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<path d="M0 0V6M0 0H6" stroke="#fff" stroke-width="1.6"/></pattern></defs>'
)


def picture(answer: Answer) -> str:
    """HTML without scripts; where the answer is a refusal, its sentence instead of the bar."""
    head = f"{escape(chosen(answer.choice))}<br><b>{escape(title(answer))}</b>"
    if answer.refusal:
        said = f'<div style="border-left:4px solid;padding:.5em 1em">{escape(answer.refusal)}{_hint(answer)}</div>'
        return _page(head, said, _command(answer))
    assert answer.step and answer.verdict
    first, *rest = str(answer.verdict).splitlines()
    step = answer.step
    lines = [f"peak: {gb(step.peak.total)} = {gib(step.peak.total)}, in {step.peak_at}", first]
    small = [_planned(answer), *rest, *answer.notes]
    return _page(
        head,
        bar(answer),
        _legend(answer),
        "<br>".join(map(escape, lines)),
        f'<span style="{SMALL}">{"<br>".join(map(escape, small))}</span>',
        _command(answer),
    )


def title(answer: Answer) -> str:
    """What comes of the choice."""
    if answer.verdict is None:
        return "This combination is refused"
    verdict = answer.verdict
    word = "" if verdict.sure else "probably "
    word += "fits" if verdict.fits else "does not fit"
    return f"{gb(verdict.needs)} {'reserved' if verdict.predicted else 'at the peak'}: {word} the {verdict.card}"


def chosen(choice: Choice) -> str:
    """Where the sliders stand."""
    recipe = "a plain loop in bfloat16" if choice.like == TEXTBOOK else choice.like
    own = {"checkpointing": choice.checkpointing, "optimizer": choice.optimizer}
    set_here = {**{name: value for name, value in own.items() if value != OWN}, **choice.more}
    others = "".join(f", {name} {value}" for name, value in set_here.items())
    return f"{choice.model}, {choice.method}, {recipe}, {choice.batch} × {choice.seq_len:,} tokens{others}"


def words(answer: Answer) -> str:
    """The picture for who does not see it."""
    what = chosen(answer.choice)
    if answer.step is None:
        return f"{what}. {title(answer)}: {answer.refusal}."
    sizes = ", ".join(f"{bucket} {readable(getattr(answer.step.peak, bucket))}" for bucket in BUCKETS)
    vram, room = answer.room
    between = f", unused between blocks {readable(unused)}" if (unused := _unused(answer)) else ""
    card = answer.choice.card
    return f"{what}. {title(answer)}: {sizes}{between}. {card} holds {gb(vram)}; the allocator may take {gb(room)}."


def _unused(answer: Answer) -> int:
    """Bytes that are reserved above the tensors of the peak."""
    assert answer.step and answer.verdict
    return answer.verdict.needs - answer.step.peak.total if answer.verdict.predicted else 0


def bar(answer: Answer) -> str:
    """The buckets at the peak, end to end, inside the card's frame or beyond it; bytes in percent of the width."""
    assert answer.step
    peak, frozen, (vram, room) = answer.step.peak, answer.frozen, answer.room
    unused = _unused(answer)
    whole = 1.01 * max(peak.total + unused, vram)

    def percent(nbytes: float) -> str:
        return f"{100 * nbytes / whole:.6f}%"

    parts = [
        PATTERN,
        f'<rect x="{percent(room)}" width="{percent(vram - room)}" y="{TOP}" height="{HEIGHT}" fill="currentColor" '
        'opacity=".18"/>',
    ]
    begin, y, height = 0, TOP + MARGIN, HEIGHT - 2 * MARGIN
    for bucket in BUCKETS:
        size = getattr(peak, bucket)
        parts.append(
            f'<rect class="{bucket}" x="{percent(begin)}" width="{percent(size)}" y="{y}" height="{height}" '
            f'fill="{COLORS[bucket]}"><title>{bucket} {readable(size)}</title></rect>'
        )
        if bucket == "weights" and frozen:
            parts.append(f'<rect width="{percent(frozen)}" y="{y}" height="{height}" fill="url(#{HATCH})"/>')
        begin += size
    frame = 'fill="none" stroke="currentColor"'
    if unused:
        parts.append(
            f'<rect class="unused" x="{percent(begin)}" width="{percent(unused)}" y="{y}" height="{height}" {frame} '
            f'stroke-dasharray="4 3"><title>reserved, unused between blocks {readable(unused)}</title></rect>'
        )
    parts.append(f'<rect x="0" width="{percent(vram)}" y="{TOP}" height="{HEIGHT}" {frame} stroke-width="2"/>')
    floor = TOP + HEIGHT
    for n, nbytes in enumerate(ticks := _ticks(whole)):
        anchor = "start" if n == 0 else "middle"
        label = f"{nbytes / GB:,g}" + (" GB" if n == len(ticks) - 1 else "")
        parts.append(
            f'<line x1="{percent(nbytes)}" x2="{percent(nbytes)}" y1="{floor}" y2="{floor + 5}" {frame}/>'
            f'<text x="{percent(nbytes)}" y="{floor + 18}" text-anchor="{anchor}" font-size="12" fill="currentColor">'
            f"{label}</text>"
        )
    around = f'width="100%" height="{floor + 22}" style="display:block;overflow:visible;margin-left:1px"'
    named = f'role="img" aria-label="{escape(words(answer))}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {named} {around}>{"".join(parts)}</svg>'


def _ticks(whole: float) -> list[float]:
    """Three to seven round numbers of bytes from 0 on, the last well before the right end."""
    power = 10.0 ** (len(str(int(whole))) - 1)
    step = next(power * n for n in (0.1, 0.2, 0.5, 1, 2) if 6 * power * n >= 0.93 * whole)
    return [step * n for n in range(7) if step * n <= 0.93 * whole]


def _legend(answer: Answer) -> str:
    assert answer.step
    entries, frozen = [], answer.frozen
    for bucket in BUCKETS:
        size, color = readable(getattr(answer.step.peak, bucket)), COLORS[bucket]
        swatch = f'<span style="display:inline-block;width:.8em;height:.8em;background:{color}"></span>'
        hatched = f" ({readable(frozen)} frozen: hatched)" if bucket == "weights" and frozen else ""
        entries.append(f"<span>{swatch} {bucket} <b>{size}</b>{hatched}</span>")
    vram, room = answer.room
    if unused := _unused(answer):
        dashed = '<span style="display:inline-block;width:.8em;height:.8em;border:1px dashed currentColor"></span>'
        entries.append(f"<span>{dashed} reserved, unused <b>{readable(unused)}</b></span>")
    grey = '<span style="display:inline-block;width:.8em;height:.8em;background:currentColor;opacity:.18"></span>'
    entries.append(f"<span>frame: {answer.choice.card}, {gb(vram)}; {grey} {gb(vram - room)} of it for CUDA</span>")
    return f'<div style="display:flex;flex-wrap:wrap;gap:0 1.2em">{"".join(entries)}</div>'


def _planned(answer: Answer) -> str:
    """What the recipe decided, in the plan's words."""
    plan = answer.plan
    assert plan
    names = ["precision", "autocast", "checkpointing", "optimizer"]
    names += [] if plan.method == "full" else ["rank", "targets", "adapter_dtype"]
    names += ["double_quantization", "kbit_preparation"] if plan.method == "qlora" else []
    return "plan: " + ", ".join(f"{name} {getattr(plan, name)}" for name in names)


def _command(answer: Answer) -> str:
    says = "the same" if answer.refusal else "the same, and what would fit"
    return (
        f'<span style="{SMALL}">{says}, in a shell:</span><br>'
        '<code style="font-size:12px;white-space:pre-wrap;overflow-wrap:anywhere">'
        f"{escape(answer.choice.command)}</code>"
    )


def _hint(answer: Answer) -> str:
    """Where to change a word that has no slider, if that is what the sentence is about."""
    word = answer.refusal.split(" ")[0]
    if word in OFTEN or word not in TrainingPlan.__dataclass_fields__:
        return ""
    call = f'calculator("{answer.choice.model}", {word}=...)'
    return f"<br>{word} has no slider; the cell takes it: <code>{escape(call)}</code>"


def _page(*blocks: str) -> str:
    inner = "".join(f'<div style="margin:.35em 0">{block}</div>' for block in blocks)
    return f'<div class="ledger-calculator" style="{STYLE}">{inner}</div>'
