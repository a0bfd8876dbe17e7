"""What four bits cost in time: a linear layer in NF4 beside its twin in 16 bits or float32. Part of ``make bench``.

    python -m tools.bench_dequantizing [--size 4096] [--turns 5] [--rows 1 16 64 256 1024]

bitsandbytes' layer and a frozen torch layer of the same weight take turns (``tools.pairs``), forward and backward to
the input: "in four bits" is the median of the first one's time over the second one's, turn by turn, with the smallest
and the largest. In the same turns the weight is dequantized alone: the same work for any number of rows (tokens). So
the ratio should be 1 + 2 dequantizings / the twin's time, which stands beside it as "expected", and fall towards 1. A
smaller weight than a cache holds is another matter: there the twin's is read from the cache, and the new one is not.

The last columns are not measured: the ratio by the roofline of two cards (``minigpt.memory.predicted.traffic``), in
16 bits.

What a CPU cannot show: at which rows the ratio falls on a GPU, whose FLOPs per byte of bandwidth are others; that few
rows can be faster in four bits, since in training the kernel that reads codes without making W is CUDA's alone; and
what it costs to launch kernels. Here each large W is new pages of memory, which torch's allocator on a GPU keeps.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import sys
from typing import Any

import torch
from torch import nn

from minigpt.memory.predicted.traffic import seconds, trained
from tools.pairs import Ratio, clocked, in_turns

CARDS = ("T4", "A100 80GB")
SECONDS = 0.5  # of turns at least, for few rows take no time


def layers(size: int, dtype: torch.dtype) -> dict[str, Any]:
    """A frozen layer of N(0, 1/size) weights, and the same weights in four bits, doubly quantized."""
    logging.getLogger("bitsandbytes").setLevel(logging.CRITICAL)  # it reports a kernel that only inference would use
    from bitsandbytes.nn import Linear4bit, Params4bit

    torch.manual_seed(0)
    plain = nn.Linear(size, size, bias=False, dtype=dtype).requires_grad_(False)
    four = Linear4bit(size, size, bias=False, compute_dtype=dtype, quant_type="nf4")
    weight: Any = Params4bit(plain.weight.data.clone(), requires_grad=False, quant_type="nf4", module=four)
    four.weight = weight.to("cpu")  # quantizes
    return {"plain": plain, "four bits": four}


def timed(size: int, dtype: torch.dtype, rows: int, turns: int) -> dict[str, list[float]]:
    """Seconds of a step of either layer on ``rows`` tokens, and of dequantizing the weight once, turn by turn."""
    from bitsandbytes.functional import dequantize_4bit

    pair = layers(size, dtype)
    x = torch.randn(rows, size, dtype=dtype, requires_grad=True)
    y = torch.randn(rows, size, dtype=dtype)

    def step(layer: nn.Module):
        return clocked(lambda: torch.autograd.grad(layer(x), x, y))

    weight = pair["four bits"].weight
    ways = {name: step(layer) for name, layer in pair.items()}
    ways["dequantizing"] = clocked(lambda: dequantize_4bit(weight.data, weight.quant_state).to(dtype))
    return in_turns(ways, turns, seconds=SECONDS)


def expected(taken: dict[str, list[float]]) -> float:
    """The ratio if four bits cost two dequantizings and nothing else: the median over the turns."""
    return statistics.median(1 + 2 * d / p for d, p in zip(taken["dequantizing"], taken["plain"], strict=True))


def roofline(card: str, rows: int, size: int) -> float:
    """The ratio on a card, in 16 bits."""
    four, plain = (seconds(trained(rows, size, size, four_bits=four), card) for four in (True, False))
    return four / plain


def measure(size: int, dtype: torch.dtype, rows: int, turns: int) -> None:
    """Print one line."""
    taken = timed(size, dtype, rows, turns)
    plain, decoding = (statistics.median(taken[name]) * 1e3 for name in ("plain", "dequantizing"))
    ratio, name = str(Ratio.of(taken, "four bits", "plain")), str(dtype).removeprefix("torch.")
    cards = "".join(f"{roofline(card, rows, size):11.2f}x" for card in CARDS)
    print(f"{name:10}{rows:6,}{plain:9.2f} ms{decoding:9.2f} ms{ratio:>26}{expected(taken):9.2f}x{cards}", flush=True)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tools.bench_dequantizing", description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=4096, help="rows and columns of the weight (4096)")
    parser.add_argument("--turns", type=int, default=5, help="of measuring, for each line, at least (5)")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 16, 64, 256, 1024], help="tokens (1 16 64 256 1024)")
    arguments = parser.parse_args(argv)
    for name, value in (("size", arguments.size), ("turns", arguments.turns), ("rows", min(arguments.rows))):
        if value < 1:
            print(f"tools.bench_dequantizing: {name} is {value}; it must be at least 1", file=sys.stderr)
            return 2
    print(
        f"one {arguments.size} x {arguments.size} weight, forward and backward, {torch.get_num_threads()} CPU threads"
    )
    head = f"{'dtype':10}{'rows':>6}{'plain':>12}{'dequantize':>12}{'in four bits':>26}{'expected':>10}"
    print(head + "".join(f"{card:>12}" for card in CARDS), flush=True)
    for dtype in (torch.bfloat16, torch.float32):
        for rows in arguments.rows:
            measure(arguments.size, dtype, rows, arguments.turns)
    return 0


if __name__ == "__main__":
    sys.exit(main())
