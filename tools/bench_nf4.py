"""Speed of NF4 on the CPU, beside bitsandbytes: quantizing, dequantizing, and a linear layer forward and backward.

    python -m tools.bench_nf4 [--size 4096] [--rounds 9]

Both get the same square weight and take turns, so that a busy machine slows both alike; the figures are medians, and
"as fast" is the median of bitsandbytes' time over ours, round by round. One and two CPU threads are measured in
processes of their own, because bitsandbytes reads its number of threads at start. The linear layer sees 64 tokens,
forward and backward to its input, with double quantization, as in training; in inference bitsandbytes has a fused
kernel for bfloat16, which MiniGPT lacks. Dequantizing in MiniGPT uses one thread whatever there are.
"""

from __future__ import annotations

import argparse
import logging
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import torch
from torch import nn

from minigpt import nf4

TOKENS = 64


def pairs(size: int, dtype: torch.dtype) -> dict[str, tuple[Callable, Callable]]:
    """For each operation, ours and bitsandbytes', on one N(0, 1) weight of (size, size)."""
    logging.getLogger("bitsandbytes").setLevel(logging.CRITICAL)  # it reports a kernel that only inference would use
    import bitsandbytes

    torch.manual_seed(0)
    linear = nn.Linear(size, size, bias=False, dtype=dtype)
    nn.init.normal_(linear.weight)
    weight = linear.weight.detach()
    ours = nf4.quantize(weight)
    theirs = bitsandbytes.functional.quantize_4bit(weight, quant_type="nf4")
    layer = nf4.NF4Linear(linear)
    reference = bitsandbytes.nn.LinearNF4(size, size, bias=False, compute_dtype=dtype)
    reference.weight = bitsandbytes.nn.Params4bit(weight, requires_grad=False, quant_type="nf4").to("cpu")
    x = torch.randn(TOKENS, size, dtype=dtype, requires_grad=True)
    y = torch.randn(TOKENS, size, dtype=dtype)
    return {
        "quantize": (
            lambda: nf4.quantize(weight),
            lambda: bitsandbytes.functional.quantize_4bit(weight, quant_type="nf4"),
        ),
        "dequantize": (
            lambda: nf4.dequantize(ours),
            lambda: bitsandbytes.functional.dequantize_4bit(*theirs),
        ),
        "linear": (
            lambda: torch.autograd.grad(layer(x), x, y),
            lambda: torch.autograd.grad(reference(x), x, y),
        ),
    }


def seconds(pair: tuple[Callable, Callable], rounds: int) -> list[tuple[float, float]]:
    """Seconds of (ours, bitsandbytes'), ``rounds`` times, after one call each; who goes first alternates."""
    taken = []
    for turn in range(rounds + 1):
        times = [0.0, 0.0]
        for which in (0, 1) if turn % 2 else (1, 0):
            started = time.perf_counter()
            pair[which]()
            times[which] = time.perf_counter() - started
        taken.append((times[0], times[1]))
    return taken[1:]


def measure(size: int, rounds: int) -> None:
    threads = torch.get_num_threads()
    for dtype in (torch.bfloat16, torch.float32):
        for operation, pair in pairs(size, dtype).items():
            taken = seconds(pair, rounds)
            ours, theirs = (statistics.median(column) * 1e3 for column in zip(*taken))
            ratio = statistics.median(b / a for a, b in taken)
            name = str(dtype).removeprefix("torch.")
            print(f"{threads:>7}  {name:10}{operation:12}{ours:9.1f} ms{theirs:12.1f} ms{ratio:10.2f}x", flush=True)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tools.bench_nf4", description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=4096, help="rows and columns of the weight (4096)")
    parser.add_argument("--rounds", type=int, default=9, help="of measuring, for each line (9)")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    for name in ("size", "rounds"):
        if getattr(arguments, name) < 1:
            print(f"tools.bench_nf4: {name} is {getattr(arguments, name)}; it must be at least 1", file=sys.stderr)
            return 2
    if arguments.here:
        measure(arguments.size, arguments.rounds)
        return 0
    print(f"NF4 of a {arguments.size} x {arguments.size} weight, medians of {arguments.rounds}")
    print(
        f"{'threads':>7}  {'weight':10}{'operation':12}{'MiniGPT':>12}{'bitsandbytes':>15}{'as fast':>11}", flush=True
    )
    options = ["--here", "--size", str(arguments.size), "--rounds", str(arguments.rounds)]
    for threads in ("1", "2"):
        environment = {**os.environ, "OMP_NUM_THREADS": threads}
        done = subprocess.run([sys.executable, "-m", "tools.bench_nf4", *options], env=environment)
        if done.returncode:
            return done.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
