"""Grade the whole table of attacks, and print it: ``python -m tests.attacks`` (``make attacks``), some minutes.

    --kind files       only this kind        --sandbox off     only this way; by default both, beside each other

A row's numbers are the points that it gained. Exit code 1 where anybody gained what they may not, or lost anything.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.attacks import ATTACKS
from tests.attacks.run import Batch, grade
from tools.grading.box import not_held

HELD = {
    "files": "the box, or the fence; else put back",
    "patching": "a judge that runs elsewhere",
    "reading": "a process without truths; the box, or the fence",
    "forging": "outputs and points are the judge's own",
    "process": "a new process; all of them end",
    "outputs": "limits; pages that are made harmless",
}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.attacks", description=__doc__.splitlines()[0])
    parser.add_argument("--kind", action="append", choices=[*HELD], help="only this kind")
    parser.add_argument("--sandbox", action="append", choices=["auto", "off"], help="only this way")
    args = parser.parse_args(argv)
    ways, faults = args.sandbox or ["auto", "off"], []
    print(" " * 62 + "".join(f"{way:<12}" for way in ways) + "held by")
    numbers = [number for number, each in enumerate(ATTACKS) if each.kind in (args.kind or HELD)]
    with tempfile.TemporaryDirectory(prefix="attacks-") as folder:
        batches = []
        for way in ways:
            Path(folder, way).mkdir()
            batches.append(grade(numbers, way, Path(folder, way)))
            faults += [f"{way}: {fault}" for fault in batches[-1].faults()]
        for number in sorted(numbers, key=lambda each: [*HELD].index(ATTACKS[each].kind)):
            told = "".join(f"{shown(batch, number):<12}" for batch in batches)
            print(f"{ATTACKS[number].name:<62}{told}{HELD[ATTACKS[number].kind]}")
        for batch in batches:
            put_back(batch)
    for way in ways:
        print(f"{way}: {not_held(way) or 'all of it is shut in'}.")
    print(*faults or ["Nobody gained what they may not, and nobody lost anything."], sep="\n")
    return 1 if faults else 0


def shown(batch: Batch, number: int) -> str:
    gained = batch.gained(number)
    return "no grade" if gained is None else f"{gained:g}"


def put_back(batch: Batch) -> None:
    """What attackers had changed, and the grader has put back."""
    notes = [row["notes"] for name, row in batch.rows.items() if name.endswith("-attacker")]
    told = sorted({note for each in notes for note in each.split("; ") if "put back" in note})
    print(f"{batch.way}: {len(told)} put back{':' * bool(told)}", *(f"  {note}" for note in told), sep="\n")


if __name__ == "__main__":
    sys.exit(main())
