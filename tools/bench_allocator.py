"""Speed of the caching allocator: a million requests and frees, part of ``make bench``.

    python -m tools.bench_allocator [--events 1000000]

Up to 2,000 blocks are alive at a time, of 300 sizes from 64 bytes to 64 MiB, and die in any order, which keeps more
free blocks apart than a training step does.
"""

from __future__ import annotations

import argparse
import random
import sys
import time

from minigpt.memory.predicted.allocator import Allocator, Block, Options

ALIVE, SIZES = 2000, 300
LIMIT_S = 10.0  # for a million


def seconds(words: str, events: int) -> float:
    """How long the allocator takes for ``events`` requests and frees, under the options of ``words``."""
    chance = random.Random(0)
    sizes = [int(2 ** chance.uniform(6, 26)) for _ in range(SIZES)]
    allocator = Allocator(Options.parse(words))
    live: list[Block] = []
    started = time.perf_counter()
    for _ in range(events):
        if not live or len(live) < ALIVE and chance.random() < 0.5:
            live.append(allocator.allocate(chance.choice(sizes)))
        else:
            at = chance.randrange(len(live))
            live[at], live[-1] = live[-1], live[at]
            allocator.free(live.pop())
    return time.perf_counter() - started


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.bench_allocator", description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=1_000_000, help="requests and frees (1,000,000)")
    events = parser.parse_args(argv).events
    if events < 1:
        print(f"error: --events is {events}; it must be at least 1", file=sys.stderr)
        return 2
    print(f"The caching allocator, {events:,} requests and frees:")
    taken = {words: seconds(words, events) for words in ("", "expandable_segments:True")}
    for words, each in taken.items():
        print(f"  {words or 'default':<26}{each:6.2f} s, {each / events * 1e6:.1f} microseconds per event")
    return 0 if max(taken.values()) < LIMIT_S * events / 1e6 else 1


if __name__ == "__main__":
    sys.exit(main())
