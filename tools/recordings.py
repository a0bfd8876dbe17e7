"""Replay recordings of PyTorch's allocator through ours, and compare every decision: ``python -m tools.recordings
FOLDER``.

The folder holds ``catalog.csv`` (one line a recording: ``trace``, its name, and ``allocator``, ``default`` or the
options it ran with) and ``traces/NAME.csv.gz``, rows ``event,action,address,size,stream,note`` in the order in which
torch recorded them (``torch.cuda.memory._record_memory_history``). Requests and frees are replayed; where each request
lands, when a segment is taken, of what size, and what is there at the end is compared. Only addresses of new segments
are the device's own choice, and come from the recording. Nothing is fitted. A replay stops at its first difference, and
names it.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from minigpt.console import show
from minigpt.memory.predicted.allocator import Allocator, Block, Device, Options
from minigpt.memory.predicted.allocator.blocks import UNMAPPED, USED
from minigpt.memory.predicted.allocator.recorded import DifferenceError, RecordedDevice
from minigpt.memory.predicted.allocator.replaying import TAKEN, Recorded
from minigpt.memory.predicted.allocator.replaying import replay as replay_events
from minigpt.memory.predicted.allocator.restoring import adopt
from minigpt.memory.units import MIB


@dataclass(frozen=True)
class Row:
    """One line of a recording. ``note`` of a segment: s or l for its pool, x if it is expandable."""

    event: int
    action: str
    address: int
    size: int
    stream: int
    note: str


def read(path: Path) -> list[Row]:
    with gzip.open(path, "rt", newline="", encoding="utf8") as file:
        lines = csv.DictReader(file)
        numbers = ("event", "address", "size", "stream")
        return [
            Row(action=line["action"], note=line["note"], **{name: int(line[name] or 0) for name in numbers})
            for line in lines
        ]


@dataclass
class Replay:
    """What of a recording came out the same: pairs of exact and all. ``difference`` is the first, in words."""

    requests: tuple[int, int]
    taken: tuple[int, int]
    segments: tuple[int, int]
    blocks: tuple[int, int]
    allocated: int
    reserved: int
    difference: str = ""

    @property
    def exact(self) -> bool:
        pairs = (self.requests, self.taken, self.segments, self.blocks)
        return not self.difference and all(same == total for same, total in pairs)


def replay(rows: list[Row], options: Options) -> Replay:
    """Replay one recording."""
    device = RecordedDevice()
    allocator = Allocator(options, device)
    totals = [sum(row.action in actions for row in rows) for actions in (("alloc",), TAKEN)]
    done, difference = [0, 0], ""
    try:
        for exact in requests(rows, allocator, device):
            done = exact
    except DifferenceError as error:
        difference = f"after {done[0]:,} requests it {error}"
    segments, blocks = final(rows, allocator)
    statistics = allocator.statistics
    return Replay(
        (done[0], totals[0]),
        (done[1], totals[1]),
        segments,
        blocks,
        statistics.allocated.peak,
        statistics.reserved.peak,
        difference,
    )


def requests(rows: list[Row], allocator: Allocator, device: RecordedDevice) -> Iterator[list[int]]:
    """Replay the events; yields how many requests and segments have come out the same, after each request."""
    events = [Recorded(row.action, row.address, row.size, row.stream) for row in rows]
    exact = [0, 0]
    for _, _, taken in replay_events(events, allocator, device, begin(rows, allocator)):
        exact[0], exact[1] = exact[0] + 1, exact[1] + taken
        yield list(exact)


def begin(rows: list[Row], allocator: Allocator) -> dict[int, Block]:
    """Put the allocator into the state in which the recording began; returns the blocks in use by address."""
    used = [(row.address, row.size, int(row.note)) for row in rows if row.action == "init_block"]
    plain: list[tuple[tuple[bool, int], list[tuple[int, int]]]] = []
    growing: dict[tuple[bool, int], list[tuple[int, int]]] = {}
    for row in rows:
        if row.action == "init_segment":
            small = "s" in row.note
            if "x" in row.note:
                growing.setdefault((small, row.stream), []).append((row.address, row.size))
            else:
                plain.append(((small, row.stream), [(row.address, row.size)]))
    live = {}
    for (small, stream), ranges in [*plain, *growing.items()]:
        inside = [block for block in used if any(at <= block[0] < at + size for at, size in ranges)]
        room = Device().reserve(allocator.options.page_size(small))[1] if (small, stream) in growing else 0
        for block in adopt(allocator, ranges, inside, small=small, stream=stream, room=room):
            live[block.address] = block
    return live


def final(rows: list[Row], allocator: Allocator) -> tuple[tuple[int, int], tuple[int, int]]:
    """Of the recorded segments and blocks at the end, how many are there, and how many there are in both together."""
    segments, blocks = set(), set()
    for segment in allocator.segments.values():
        note = ("s" if segment.pool.small else "l") + ("x" if segment.page else "")
        mapped: list[Block] = []
        for block in segment.blocks():
            if block.state is not UNMAPPED:
                blocks.add((block.address, block.size, "used" if block.state is USED else "free"))
                mapped.append(block)
            if mapped and (block.state is UNMAPPED or block.next is None):
                segments.add((mapped[0].address, sum(each.size for each in mapped), segment.stream, note))
                mapped = []
    recorded = {(r.address, r.size, r.stream, r.note) for r in rows if r.action == "final_segment"}
    recorded_blocks = {(r.address, r.size, r.note) for r in rows if r.action == "final_block"}
    pairs = ((segments, recorded), (blocks, recorded_blocks))
    (a, b), (c, d) = ((len(ours & theirs), len(ours | theirs)) for ours, theirs in pairs)
    return (a, b), (c, d)


def options_of(text: str) -> Options:
    """The options in a catalog's words: ``default``, ``expandable_segments``, or a text as in PYTORCH_ALLOC_CONF."""
    words = {"": "", "default": "", "expandable_segments": "expandable_segments:True"}
    return Options.parse(words.get(text, text))


def replay_folder(folder: Path) -> Iterator[tuple[dict[str, str], Replay]]:
    """Replay every recording of the catalog. Raises ValueError for a folder without one, or a broken one."""
    catalog = folder / "catalog.csv"
    if not catalog.is_file():
        raise ValueError(f"FOLDER is {folder}; it must hold catalog.csv, and the recordings in traces/")
    with open(catalog, newline="", encoding="utf8") as file:
        lines = list(csv.DictReader(file))
    for line in lines:
        for column in ("trace", "allocator"):
            if not line.get(column):
                raise ValueError(f"{catalog} has a line without {column}")
        rows = read(folder / "traces" / f"{line['trace']}.csv.gz")
        yield line, replay(rows, options_of(line["allocator"]))


def table(replays: Iterator[tuple[dict[str, str], Replay]], tell=show) -> bool:
    """Tell each recording as it is replayed, then the sums; returns whether all came out the same."""
    head = ("requests", "segments taken", "segments left", "blocks left")
    tell(f"{'recording':<56}" + "".join(f"{name:>18}" for name in head) + f"{'peaks, MiB':>20}")
    done: list[Replay] = []
    for line, result in replays:
        done.append(result)
        pairs = (result.requests, result.taken, result.segments, result.blocks)
        peaks = f"{result.allocated / MIB:,.0f} / {result.reserved / MIB:,.0f}"
        tell(f"{line['trace']:<56.55}" + "".join(f"{pair(*each):>18}" for each in pairs) + f"{peaks:>20}")
        for name, mine in (("peak_allocated", result.allocated), ("peak_reserved", result.reserved)):
            if not result.difference and line.get(name) and int(line[name]) != mine:
                result.difference = f"its {name} is {mine:,}, the catalog's {int(line[name]):,}"
        if result.difference:
            tell(f"    {result.difference}")
    fields = ("requests", "taken", "segments", "blocks")
    sums = [pair(*map(sum, zip(*(getattr(each, name) for each in done), strict=True))) for name in fields]
    tell(f"{f'all {len(done)}':<56}" + "".join(f"{each:>18}" for each in sums))
    exact = sum(each.exact for each in done)
    tell(f"{exact} of {len(done)} recordings are exact: every request in its place, every segment at its event.")
    return exact == len(done)


def pair(same: int, total: int) -> str:
    return f"{same:,} / {total:,}"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.recordings", description=__doc__.splitlines()[0])
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="where catalog.csv and traces/ are")
    try:
        return 0 if table(replay_folder(parser.parse_args(argv).folder)) else 1
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
