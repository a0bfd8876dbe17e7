"""A comparison of predicted and recorded in words, and as JSON."""

from __future__ import annotations

from minigpt.memory.snapshot.against import Against
from minigpt.memory.snapshot.holders import line
from minigpt.memory.units import readable

ALIKE = 0.02  # what another library or the batch holds is less, as a part of what is held


def text(found: Against) -> str:
    """The comparison in lines."""
    place = found.place
    pairs = {"peak allocated": found.allocated, "peak reserved": found.reserved, "held before": found.held}
    lines = [f"{'':<16}{'predicted':>14}{'recorded':>14}"]
    lines += [f"{name:<16}{readable(mine):>14}{readable(theirs):>14}" for name, (mine, theirs) in pairs.items()]
    lines += ["", assumed(found)]
    more = found.held[1] - found.held[0]
    if abs(more) > ALIKE * found.held[0]:
        words = f"{readable(abs(more))} {'more' if more > 0 else 'less'}"
        lines.append(f"warning: before it {words} was held than the plan has it; so far the peaks mean something else")
    if found.parting is None:
        lines.append(f"all {found.compared:,} requests that are compared agree in size and order")
    else:
        lines += parting(found)
    left = found.requests - place.skipped - found.compared
    if left:
        lines.append(f"{left:,} more recorded requests are not compared: the tape was told no further")
    return "\n".join(lines)


def assumed(found: Against) -> str:
    """Where the recording was taken to begin, and how sure that is."""
    place = found.place
    where = f"request {found.number:,} of {found.part} on the tape"
    skipped = f" after {place.skipped} that no plan knows" if place.skipped else ""
    if not place.sure:
        return f"warning: nowhere do its sizes agree for long; it is taken to begin with {where}"
    others = f", as from {place.ways} places together" if place.ways > 1 else ""
    return f"it is taken to begin{skipped} with {where}: from there {place.agree:,} sizes agree{others}"


def parting(found: Against) -> list[str]:
    """Where the two part, in words."""
    record, request = found.asked
    assert record is not None and request is not None and found.parting is not None
    phase, block, doing = record.born
    what = ", ".join(filter(None, (phase, ": ".join(filter(None, (block, doing))))))
    shape = f", {record.dtype} {record.shape}" if record.shape is not None else ""
    where = f"request {found.parting:,} of {found.requests:,}, counted from 0"
    if found.differs == "let go":
        return [f"they part before {where}: other memory is let go; it is {readable(record.nbytes)} in {what}"]
    return [
        f"they part at {where}:",
        f"  the tape       {readable(record.nbytes):>12}  {what}{shape}",
        f"  the recording  {readable(request.nbytes):>12}  {line(request.frames)}",
    ]


def as_dict(found: Against) -> dict:
    """The comparison as JSON has it: bytes as integers."""
    record, request = found.asked
    parts = None
    if record is not None and request is not None:
        parts = {"request": found.parting, "differs": found.differs, "predicted": record.nbytes, "tape": record.born,
                 "recorded": request.nbytes, "line": line(request.frames)}  # fmt: skip
    pairs = {"peak_allocated": found.allocated, "peak_reserved": found.reserved, "held_before": found.held}
    return {
        **{name: dict(zip(("predicted", "recorded"), pair)) for name, pair in pairs.items()},
        "requests": found.requests, "compared": found.compared, "parts_at": parts,
        "began": {**found.place._asdict(), "part": found.part, "request": found.number}, "assumed": assumed(found),
    }  # fmt: skip
