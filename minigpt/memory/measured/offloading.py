"""A bus and a card, played by two threads: how busy the card is when its weights come from elsewhere.

One thread multiplies, layer after layer. The other brings each layer's weight, in pieces, no faster than a bus of
``bus`` bytes per second, and is one layer ahead, as FSDP2 is. A layer starts when its weight is there; the copy of the
next one starts when its buffer is free. So a layer takes the longer of two times, and

    utilisation = products / the longer of products and transfers

The copies are real and their speed is not: a copy within a computer's memory is too fast to show what a bus does, so
each piece waits until a bus of that speed would have delivered it. The products are timed without the other thread
first, since that thread takes some of the processor, too.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from threading import Semaphore, Thread

import torch

from minigpt.values import check_counts

WIDTH, LAYERS, PIECES = 1024, 4, 8  # of a weight (WIDTH, WIDTH) in float32; layers of a step; pieces of a weight
TRIES, ENOUGH = (
    3,
    1.0,
)  # the fastest counts: what else runs can only slow a step down; seconds after which one is enough


@dataclass(frozen=True)
class Busy:
    """Seconds of one step with ``rows`` tokens: its products alone, what its bus takes, and both together."""

    rows: int
    compute: float
    transfer: float
    together: float

    @property
    def utilisation(self) -> float:
        """The part of the step in which the products ran, as measured."""
        return min(1.0, self.compute / self.together)


def measure_offload(rows: tuple[int, ...] = (32, 64, 128, 256, 512, 1024), middle: int = 256) -> list[Busy]:
    """A step's times for each number of ``rows``, over a bus that takes as long as the products of ``middle`` rows.

    About two seconds where nothing else runs. One thread multiplies, whatever torch is set to; the setting comes back.
    """
    check_counts(middle=middle, **{f"rows[{i}]": count for i, count in enumerate(rows)})
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        host = torch.randn(LAYERS + 1, WIDTH, WIDTH)
        _alone(middle, host)
        bus = LAYERS * host[0].nbytes / min(_alone(middle, host) for _ in range(2 * TRIES))
        return [_busy(count, host, bus) for count in rows]
    finally:
        torch.set_num_threads(threads)


def _busy(rows: int, host: torch.Tensor, bus: float) -> Busy:
    tries, began = list[tuple[float, float]](), time.perf_counter()
    while not tries or len(tries) < TRIES and time.perf_counter() - began < ENOUGH:
        tries.append((_alone(rows, host), _together(rows, host, bus)))
    return Busy(rows, min(alone for alone, _ in tries), LAYERS * host[0].nbytes / bus, min(both for _, both in tries))


def _alone(rows: int, host: torch.Tensor) -> float:
    x, y = torch.randn(rows, WIDTH), torch.empty(rows, WIDTH)
    began = time.perf_counter()
    for weight in host[:LAYERS]:
        torch.mm(x, weight, out=y)
    return time.perf_counter() - began


def _together(rows: int, host: torch.Tensor, bus: float) -> float:
    """From the moment the first weight is there until the last product, and the next step's first weight, are done."""
    x, y = torch.randn(rows, WIDTH), torch.empty(rows, WIDTH)
    card, there, free = torch.empty(2, WIDTH, WIDTH), Semaphore(0), Semaphore(2)
    other = Thread(target=_bring, args=(host, card, bus, there, free))
    other.start()
    there.acquire()
    began = time.perf_counter()
    for layer in range(LAYERS):
        torch.mm(x, card[layer % 2], out=y)
        free.release()
        there.acquire()
    other.join()
    return time.perf_counter() - began


def _bring(host: torch.Tensor, card: torch.Tensor, bus: float, there: Semaphore, free: Semaphore) -> None:
    """The bus: each weight into the buffer that is free, in pieces that arrive when such a bus would have them."""
    for layer, weight in enumerate(host):
        free.acquire()
        began = time.perf_counter()
        for i, (piece, place) in enumerate(zip(weight.chunk(PIECES), card[layer % 2].chunk(PIECES)), 1):
            place.copy_(piece)
            due = began + i / PIECES * weight.nbytes / bus
            time.sleep(max(0.0, due - time.perf_counter()))
        there.release()
