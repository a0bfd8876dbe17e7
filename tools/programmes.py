"""Programmes recorded on real GPUs, told from configuration alone: ``python -m tools.programmes FOLDER``.

The folder is that of ``tools.recordings``. For each recording its programme runs on the tape, with what CUDA's kernels
ask for beside; compared are its requests, one by one, with what is let go between them, and the peaks of what is
allocated and reserved. Only the catalogue's configuration and the author's script go in; where a programme parts from
its recording, the first request that differs is shown.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from minigpt.console import show
from minigpt.memory.predicted.allocator import Allocator
from minigpt.memory.predicted.reserved import replay
from minigpt.memory.snapshot import requests as made
from tools.recorded import traces
from tools.recorded.scripts import tell
from tools.recordings import options_of, read

ALLOCATED, RESERVED = 0.001, 0.01  # how far a peak may be off


@dataclass(frozen=True)
class Compared:
    """A recording and its programme. ``parting``: the number of the first request that differs, None without one."""

    name: str
    requests: int
    parting: int | None
    words: str
    allocated: tuple[int, int]  # told, recorded
    reserved: tuple[int, int]

    @property
    def close(self) -> bool:
        return abs(off(self.allocated)) <= ALLOCATED and abs(off(self.reserved)) <= RESERVED


def off(pair: tuple[int, int]) -> float:
    return pair[0] / pair[1] - 1


def compare(line: dict[str, str], folder: Path) -> Compared | None:
    """A line of the catalogue; None for one whose programme is not told."""
    programme = tell(line)
    if programme is None:
        return None
    allocator = Allocator(options_of(line["allocator"]))
    replay(programme.tape, allocator, programme.began)
    told = made.told(programme.tape, programme.began)
    recorded = traces.recorded(read(folder / "traces" / f"{line['trace']}.csv.gz"))
    parting = told.parting(recorded)
    words = "" if parting is None else f"told {told.around(parting)}; recorded {recorded.around(parting)}"
    peaks = allocator.statistics
    allocated = peaks.allocated.peak, int(line["peak_allocated"])
    return Compared(
        line["trace"], len(recorded.sizes), parting, words, allocated, (peaks.reserved.peak, int(line["peak_reserved"]))
    )


def compare_folder(folder: Path, only: str = "") -> Iterator[tuple[str, Compared | None]]:
    with open(folder / "catalog.csv", newline="", encoding="utf8") as file:
        for line in csv.DictReader(file):
            if only in line["trace"]:
                yield line["trace"], compare(line, folder)


def table(found: Iterator[tuple[str, Compared | None]]) -> list[Compared]:
    show(f"{'programme':<56}{'requests':>9}{'parts at':>9}{'allocated':>16}{'off':>9}{'reserved':>16}{'off':>9}")
    told, silent = [], []
    for name, row in found:
        if row is None:
            silent.append(name)
            continue
        told.append(row)
        parts = "nowhere" if row.parting is None else f"{row.parting:,}"
        peaks = "".join(f"{pair[0]:>16,}{off(pair):>9.3%}" for pair in (row.allocated, row.reserved))
        show(f"{name:<56.55}{row.requests:>9,}{parts:>9}{peaks}")
        if row.words:
            show(f"    {row.words}")
    exact = sum(row.parting is None for row in told)
    both = sum(row.allocated[0] == row.allocated[1] and row.reserved[0] == row.reserved[1] for row in told)
    show(f"{exact} of {len(told)} programmes are told request by request; both peaks are exact to the byte in {both};")
    show(f"within {ALLOCATED:.1%} of allocated and {RESERVED:.0%} of reserved: {sum(row.close for row in told)}.")
    for name in silent:
        show(f"not told: {name}")
    return told


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.programmes", description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="part of a recording's name")
    options = parser.parse_args()
    return 0 if all(row.parting is None for row in table(compare_folder(options.folder, options.only))) else 1


if __name__ == "__main__":
    sys.exit(main())
