"""What a precision means on a device: which products are cast, and whether bfloat16 is computed natively."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from minigpt.memory.plan import PRECISIONS
from minigpt.precision import autocast, native_bf16, weight_dtype


@pytest.mark.parametrize("name", PRECISIONS)
def test_autocast_casts_products_exactly_where_the_table_says(name):
    layer = nn.Linear(4, 4)
    with autocast(name, "cpu"):
        assert layer(torch.ones(1, 4)).dtype == getattr(torch, PRECISIONS[name].autocast or "float32")


def test_native_bf16_of_a_gpu_leaves_emulation_out(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation)
    assert native_bf16("cuda") is False  # a T4: only emulated
    assert isinstance(native_bf16("cpu"), bool)


@pytest.mark.parametrize("ask", [lambda name: autocast(name, "cpu"), weight_dtype])
def test_another_precision_is_named(ask):
    with pytest.raises(ValueError, match="precision is 'fp8'; allowed: fp32"):
        ask("fp8")
