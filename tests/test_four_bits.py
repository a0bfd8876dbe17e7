"""Which products bitsandbytes fuses with decoding on CUDA, against its own rule, taken out of its source."""

from __future__ import annotations

import ast
import functools
import random
from pathlib import Path

import bitsandbytes
import pytest
import torch

from minigpt.memory.gpus import GPUS
from minigpt.memory.predicted.four_bits import NEVER, fuses

PATH = Path(bitsandbytes.__file__).parent / "backends" / "cuda" / "ops.py"
RULE, FLOOR, MOST = "_gemm_4bit_use_custom_cuda", "_GEMM_4BIT_CUSTOM_FLOOR_M", "_gemm_4bit_custom_max_m"


def named(node: ast.stmt) -> set[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node]
    return {getattr(target, "name", None) or getattr(target, "id", None) for target in targets}


def theirs(card: str):
    parts = [node for node in ast.parse(PATH.read_text()).body if {RULE, FLOOR} & named(node)]
    gpu = GPUS[card]
    found = {"functools": functools, "torch": torch}
    found["_gpu_dispatch_props"] = lambda index: (gpu.processors, *gpu.capability)
    exec(compile(ast.Module(parts, []), str(PATH), "exec"), found)
    return found[RULE]


@pytest.mark.parametrize("card", GPUS)
def test_the_rule_is_bitsandbytes_own(card):
    """3,000 products, of matrices of up to 33,280 by 30,720, square ones among them; rows around every threshold."""
    rule, draw, seen = theirs(card), random.Random(card), set()
    for _ in range(1000):
        n_out = draw.choice([64 * draw.randint(1, 32), 256 * draw.randint(1, 130), 1024 * draw.randint(1, 30)])
        n_in = n_out if draw.random() < 0.2 else draw.choice([64 * draw.randint(1, 64), 1024 * draw.randint(1, 30)])
        rows = draw.choice([draw.randint(1, 16), draw.randint(1, 520), draw.choice((64, 65, 128, 129, 320, 512, 1536))])
        for dtype in (torch.float16, torch.bfloat16, torch.float32):
            expected = rule(0, dtype, rows, n_out, n_in)
            card_ = GPUS[card].capability, GPUS[card].processors
            assert fuses(card_, str(dtype).removeprefix("torch."), rows, n_out, n_in) == expected, (rows, n_out, n_in)
            seen.add(expected)
    assert seen == {True, False}


def test_what_it_asks_before():
    """Beyond so many rows, and where a block of 64 weights would reach into the next row, W is made whole."""
    text = PATH.read_text()
    assert f"{MOST} = {NEVER}" in text and "elif K % blocksize != 0:" in text
    assert fuses(((8, 0), 108), "float16", 4, 64, 128) and not fuses(((8, 0), 108), "float16", 4, 64, 96)
    assert not fuses(((8, 0), 108), "float16", NEVER + 1, 64 * 32, 64)
