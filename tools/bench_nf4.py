"""Speed of NF4 on the CPU, beside bitsandbytes: quantizing, dequantizing, and a linear layer forward and backward.

    python -m tools.bench_nf4 [--size 4096] [--rounds 9]

Both get the same square weight and take turns (``tools.pairs``): "as fast" is the median of bitsandbytes' time over
ours, turn by turn, with the smallest and the largest; the times beside it are medians. One and two CPU threads are
measured in processes of their own, because bitsandbytes reads its number of threads at start. The linear layer sees 64
tokens, forward and backward to its input, with double quantization, as in training; in inference bitsandbytes has a
fused kernel for bfloat16, which MiniGPT lacks. Dequantizing in MiniGPT uses one thread whatever there are.
"""

from __future__ import annotations

import argparse
import logging
import os
import statistics
import subprocess
import sys
from collections.abc import Callable

import torch
from torch import nn

from minigpt import nf4
from tools.pairs import Ratio, clocked, in_turns

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
    reference.weight = bitsandbytes.nn.Params4bit(weight, requires_grad=False, quant_type="nf4")
    reference.to("cpu")  # quantizes
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


def measure(size: int, rounds: int) -> None:
    threads = torch.get_num_threads()
    for dtype in (torch.bfloat16, torch.float32):
        for operation, pair in pairs(size, dtype).items():
            taken = in_turns(dict(zip(("ours", "theirs"), map(clocked, pair))), rounds)
            ours, theirs = (statistics.median(times) * 1e3 for times in taken.values())
            fast = str(Ratio.of(taken, "theirs", "ours"))
            name = str(dtype).removeprefix("torch.")
            print(f"{threads:>7}  {name:10}{operation:12}{ours:9.1f} ms{theirs:12.1f} ms{fast:>24}", flush=True)


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
        f"{'threads':>7}  {'weight':10}{'operation':12}{'MiniGPT':>12}{'bitsandbytes':>15}{'as fast':>24}", flush=True
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
