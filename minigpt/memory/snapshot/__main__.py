"""What a GPU's allocator recorded: ``python -m minigpt.memory.snapshot step.pickle``.

Reads a snapshot of torch's safely, and shows its peak, what was reserved and why, and whose lines hold the memory.
With ``--against MODEL`` and the options of a plan, as ``python -m minigpt.memory`` has them: predicted beside recorded,
and where they part. Exit status: 0, or 2 for wrong use and for a file that is no snapshot. Imports no torch, unless the
model is a MiniGPT.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from minigpt.console import show
from minigpt.memory.__main__ import Parser, add_plan, model_of, plan_of
from minigpt.memory.snapshot import beside
from minigpt.memory.snapshot.against import Against, compare
from minigpt.memory.snapshot.blocks import with_blocks
from minigpt.memory.snapshot.growth import Growth, growth
from minigpt.memory.snapshot.holders import Holder, holders
from minigpt.memory.snapshot.recording import Recording, read
from minigpt.memory.units import gb, gib, readable

PICTURES = (".png", ".svg", ".pdf")
OWN = ("file", "device", "top", "plot", "json", "against", "like")  # what else is given is the plan's


def make_parser() -> Parser:
    parser = Parser(
        prog="python -m minigpt.memory.snapshot",
        description="Read a snapshot that torch recorded: its peak, what was reserved and why, and for whom.",
        allow_abbrev=False,
    )
    parser.add_argument("file", metavar="FILE.pickle", help="the snapshot; nothing in it is run")
    parser.add_argument("--device", type=int, metavar="N", help="of which GPU (default: the one with the most events)")
    parser.add_argument("--top", type=int, default=8, metavar="N", help="how many lines to list (default: 8)")
    parser.add_argument("--plot", metavar="PICTURE", help=f"draw the timeline into a file: {', '.join(PICTURES)}")
    parser.add_argument("--json", action="store_true", help="print one JSON object: bytes as integers")
    parser.add_argument("--against", metavar="MODEL", help="show beside it what is predicted of this model's training")
    add_plan(parser.add_argument_group("the plan of that training; it needs a card"))
    return parser


def main(arguments: list[str] | None = None) -> int:
    given = make_parser().parse_args(arguments)
    plan = {name: value for name, value in vars(given).items() if name not in OWN}
    try:
        if given.top < 1:
            raise ValueError(f"top is {given.top}; it must be at least 1")
        if given.plot is not None and Path(given.plot).suffix.lower() not in PICTURES:
            raise ValueError(f"plot is {given.plot!r}; it must end in {', '.join(PICTURES)}")
        if given.against is None and (plan or given.like):
            raise ValueError(f"{next(iter(plan), 'like')} is given; a plan needs against, the name of a model")
        recording = with_blocks(read(given.file, given.device))
        against = given.against and compare(recording, model_of(given.against), plan_of(plan, given.like))
        if given.plot is not None:
            _draw(recording, given.plot)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    report = Report(recording, against or None)
    show(report.json(given.top) if given.json else report.text(given.top))
    return 0


class Report:
    """What there is to say of a recording."""

    def __init__(self, recording: Recording, against: Against | None = None) -> None:
        self.recording, self.against, self.sizes = recording, against, list(recording.sizes())
        self.places = places = (recording.peak(0), recording.peak(1))
        self.holders: list[Holder] = holders(recording.held_after(places[0]))
        self.growth: list[Growth] = growth(recording)

    def text(self, top: int) -> str:
        recording, (first, second) = self.recording, self.places
        (allocated, over), (below, reserved) = self.sizes[first], self.sizes[second]
        above = reserved - allocated
        asked = sum(event.action == "alloc" for event in recording.events)
        lines = [
            f"device {recording.device}: {len(recording.events):,} events, {asked:,} requests; before them "
            f"{readable(self.sizes[0][0])} allocated, {readable(self.sizes[0][1])} reserved",
            "",
            f"allocated at most {gb(allocated)} = {gib(allocated)}, after event {first:,}; reserved then {gb(over)}",
            f"reserved at most  {gb(reserved)} = {gib(reserved)}, after event {second:,}; allocated then {gb(below)}",
            f"reserved above allocated, each at its most: {gb(above)}, {above / max(allocated, 1):.1%}",
        ]
        if recording.open is None:
            lines.append("allocated is at least that: the rules of the allocator do not replay this recording")
        elif recording.open:
            lines.append(f"allocated may be up to {readable(recording.open)} more: blocks from before hide their size")
        if recording.unexplained:
            lines.append(f"warning: {recording.unexplained:,} events contradict the final state; figures may be short")
        lines += self._out_of_memory()
        lines += ["", "held when most was allocated, by the line that asked:"]
        lines += [f"{readable(h.nbytes):>12}  {h.requests:>6,} x  {h.line}" for h in self.holders[:top]]
        rest = self.holders[top:]
        lines += [f"{readable(sum(h.nbytes for h in rest)):>12}  from {len(rest):,} other lines"] if rest else []
        if self.growth:
            lines += ["", "memory taken from the device, the largest first: for a request of, while so much lay unused"]
            largest = sorted(self.growth, key=lambda g: -g.taken)
            lines += [f"{readable(g.taken):>12} {readable(g.asked):>12} {readable(g.unused):>12}  {g.line}"
                      for g in largest[:top]]  # fmt: skip
        lines += ["", beside.text(self.against)] if self.against else []
        return "\n".join(lines)

    def _out_of_memory(self) -> list[str]:
        failed = [event for event in self.recording.events if event.action == "oom"]
        return [f"out of memory: {readable(e.request.nbytes)} were asked for, {readable(e.free)} free on the device"
                for e in failed]  # fmt: skip

    def json(self, top: int) -> str:
        (allocated, over), (below, reserved) = (self.sizes[place] for place in self.places)
        return json.dumps(
            {
                "device": self.recording.device,
                "events": len(self.recording.events),
                "unexplained": self.recording.unexplained,
                "allocated_may_be_more": self.recording.open,
                "peak_allocated": {"bytes": allocated, "reserved": over, "after_event": self.places[0]},
                "peak_reserved": {"bytes": reserved, "allocated": below, "after_event": self.places[1]},
                "holders": [holder._asdict() for holder in self.holders[:top]],
                "growth": [each._asdict() for each in self.growth],
                "against": self.against and beside.as_dict(self.against),
            },
            indent=2,
        )


def _draw(recording: Recording, path: str) -> None:
    """The timeline into a picture; half a file is never left. Raises ValueError where it cannot be written."""
    import matplotlib

    matplotlib.use("Agg")
    from minigpt.memory.plots.recorded import recorded

    axes = recorded(recording)
    try:
        axes.figure.canvas.figure.savefig(path, dpi=150)
    except OSError as error:
        raise ValueError(f"plot {path!r} cannot be written: {error.strerror or type(error).__name__}") from None


if __name__ == "__main__":
    sys.exit(main())
