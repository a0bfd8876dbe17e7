"""The bench of dequantizing: the ratio that it expects, that both layers have one weight, and what it prints."""

from __future__ import annotations

import pytest
import torch

from minigpt.memory.gpus import GPUS
from tools import bench_dequantizing as bench


def test_what_is_expected_is_two_dequantizings_on_top():
    taken = {"plain": [1.0, 10.0, 1.0], "dequantizing": [0.5, 5.0, 2.0], "four bits": [9.0, 9.0, 9.0]}
    assert bench.expected(taken) == 2.0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_twins_have_one_weight(dtype):
    x = torch.randn(8, 256, dtype=dtype)
    plain, four = (layer(x).float() for layer in bench.layers(256, dtype).values())
    assert 0.02 < (four - plain).norm() / plain.norm() < 0.15  # NF4's rounding, and nothing else


def test_the_roofline_of_one_row_is_bytes_and_of_many_next_to_nothing():
    """W read once; or codes read, W written and read: 2.77 + 2 bytes for 2, of which the scales' float32 are 0.25."""
    bytes_per_weight = 0.5 + 1 / 64 + 4 / 16384 + 16 / 64 + 2
    assert bench.roofline("T4", 1, 4096) == pytest.approx(1 + bytes_per_weight / 2, rel=0.001)
    extra, rows = bytes_per_weight / GPUS["T4"].bandwidth, 2**16
    assert bench.roofline("T4", rows, 4096) == pytest.approx(1 + extra / (2 * rows / GPUS["T4"].half))


def test_it_prints_a_line_for_each_number_of_rows(capsys, monkeypatch):
    monkeypatch.setattr(bench, "SECONDS", 0)
    assert bench.main(["--size", "64", "--turns", "2", "--rows", "1", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines[2:]] == [[d, r] for d in ("bfloat16", "float32") for r in "13"]
    assert bench.main(["--rows", "0"]) == 2 and "rows is 0; it must be at least 1" in capsys.readouterr().err
