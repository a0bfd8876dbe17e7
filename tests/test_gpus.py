"""The list of cards, against torch's own rule for bfloat16 and against what a label can hold."""

from __future__ import annotations

from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from transformers import FineGrainedFP8Config
from transformers.quantizers.quantizer_finegrained_fp8 import FineGrainedFP8HfQuantizer

from minigpt.memory import TrainingPlan
from minigpt.memory.gpus import GPUS, find_gpu
from minigpt.memory.units import GB, GIB


@pytest.mark.parametrize("name", GPUS)
def test_bfloat16_is_native_exactly_where_torch_says_so(name):
    gpu = GPUS[name]
    properties = SimpleNamespace(major=gpu.capability[0], minor=gpu.capability[1])
    with (
        mock.patch.object(torch.cuda, "is_available", lambda: True),
        mock.patch.object(torch.cuda, "current_device", lambda: 0),
        mock.patch.object(torch.cuda, "get_device_properties", lambda device: properties),
        mock.patch.object(torch.version, "hip", None),
        mock.patch.object(torch.version, "cuda", "13.0"),
    ):
        native = torch.cuda.is_bf16_supported(including_emulation=False)
    assert ("bfloat16" in gpu.formats) == native
    assert "float16" in gpu.formats


@pytest.mark.parametrize("name", GPUS)
def test_tf32_and_fp8_are_native_where_torch_and_transformers_say_so(name, monkeypatch):
    """tf32: ``torch.cuda.is_tf32_supported``. fp8: transformers' quantizer, which otherwise makes bf16 of the model."""
    gpu = GPUS[name]
    properties = SimpleNamespace(major=gpu.capability[0], minor=gpu.capability[1])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(torch.version, "hip", None)
    assert ("tf32" in gpu.native) == torch.cuda.is_tf32_supported()
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: gpu.capability)
    quantizer = FineGrainedFP8HfQuantizer(FineGrainedFP8Config())
    quantizer.validate_environment(device_map="cuda")
    assert ("fp8" in gpu.native) == (not quantizer.quantization_config.dequantize)


@pytest.mark.parametrize("name", GPUS)
def test_a_card_holds_its_label_in_gib_less_a_part_that_is_withheld(name):
    gpu = GPUS[name]
    assert 0 <= gpu.withheld <= gpu.label * GIB / 15  # error correction keeps 1/16 of GDDR6


def test_the_named_cards_differ_where_they_should():
    assert GPUS["T4"].formats == ("float16",)  # no bfloat16 before Ampere
    assert GPUS["T4"].native == ("fp16", "int8")
    assert GPUS["A100 80GB"].native == GPUS["RTX 3090"].native == ("fp16", "int8", "bf16", "tf32")
    assert GPUS["L4"].native == GPUS["H100 80GB"].native == ("fp16", "int8", "bf16", "tf32", "fp8")
    assert all(100 * GB <= gpu.bandwidth <= 10_000 * GB for gpu in GPUS.values())
    assert GPUS["A100 80GB"].vram == 80 * GIB


@pytest.mark.parametrize(
    ("asked", "card"),
    [
        ("t4", "T4"),
        ("Tesla T4", "T4"),
        ("rtx4090", "RTX 4090"),
        ("4090", "RTX 4090"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("a6000", "RTX A6000"),
        ("h100", "H100 80GB"),
        ("NVIDIA H100 80GB HBM3", "H100 80GB"),
        ("a100-80gb", "A100 80GB"),
        ("NVIDIA A100-SXM4-40GB", "A100 40GB"),
        ("NVIDIA A100 80GB PCIe", "A100 80GB"),
    ],
)
def test_a_card_is_known_as_people_and_torch_write_it(asked, card):
    assert find_gpu(asked) == card == TrainingPlan(card=asked).card


@pytest.mark.parametrize("name", GPUS)
def test_a_cards_own_name_is_its_name(name):
    assert find_gpu(name) == name


@pytest.mark.parametrize("asked", ["A10", "RTX", "nvidia", "", "B200", 4090])
def test_another_card_is_refused(asked):
    with pytest.raises(ValueError, match="card is .*; allowed: T4, RTX 4080"):
        find_gpu(asked)


def test_a_card_of_two_sizes_asks_which():
    with pytest.raises(ValueError, match="A100 is sold with 40GB and 80GB: say which, 'A100 40GB' or 'A100 80GB'"):
        TrainingPlan(card="a100".upper())


CHIPS = {  # multiprocessors, FLOPs of each per clock in 16 bits and in float32, MHz at boost; PCIe's generation
    "T4": (40, 1024, 128, 1590, 3),
    "RTX 4080": (76, 512, 256, 2505, 4),
    "RTX 3090": (82, 512, 256, 1695, 4),
    "RTX 4090": (128, 512, 256, 2520, 4),
    "A10G": (80, 512, 256, 1710, 4),
    "L4": (58, 1024, 256, 2040, 4),
    "RTX 5090": (170, 512, 256, 2407, 5),
    "A100 40GB": (108, 2048, 128, 1410, 4),
    "RTX A6000": (84, 1024, 256, 1800, 4),
    "L40S": (142, 1024, 256, 2520, 4),
    "A100 80GB": (108, 2048, 128, 1410, 4),
    "H100 80GB": (132, 4096, 256, 1830, 5),
    "H200": (132, 4096, 256, 1830, 5),
}


@pytest.mark.parametrize("name", GPUS)
def test_speeds_are_those_of_the_chip(name):
    """What a data sheet promises is multiprocessors times FLOPs per clock times the clock; and PCIe's lanes double."""
    gpu, (processors, half, single, clock, generation) = GPUS[name], CHIPS[name]
    assert gpu.half == pytest.approx(processors * half * clock * 1e6, rel=0.015)
    # Hopper's tensor cores have a lower boost clock (1,830 MHz) than the rest (1,980).
    clock = 1980 if gpu.capability == (9, 0) else clock
    assert gpu.single == pytest.approx(processors * single * clock * 1e6, rel=0.015)
    assert gpu.bus == 2**generation * 2 * GB


def test_an_emulated_format_is_not_faster_than_float32():
    assert GPUS["T4"].speed("float16") == GPUS["T4"].half
    assert GPUS["T4"].speed("bfloat16") == GPUS["T4"].speed("float32") == GPUS["T4"].single
    assert GPUS["L4"].speed("bfloat16") == GPUS["L4"].half
