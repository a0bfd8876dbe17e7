"""Bytes and FLOPs against the tensors that torch's own operations take and give, and the roofline by hand."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import bitsandbytes
import bitsandbytes.functional as bnb
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from minigpt.memory import Architecture, TrainingPlan
from minigpt.memory.gpus import GPUS
from minigpt.memory.measured.building import build
from minigpt.memory.predicted.flops import flops
from minigpt.memory.predicted.traffic import (
    Kernel,
    dequantizing,
    fused,
    matrices,
    product,
    ridge,
    rows_to_ridge,
    seconds,
    trained,
)
from tools.models import MODELS

VIEWS = ("aten.view", "aten.t.", "aten._unsafe_view", "aten.detach", "aten.reshape", "aten.alias", "aten.transpose")


class Moved(TorchDispatchMode):
    """Bytes of what each operation but a view takes and gives, if its name has one of ``only`` in it."""

    def __init__(self, *only: str) -> None:
        super().__init__()
        self.nbytes, self.only, self.seen = 0, only, []

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        out = operation(*args, **(kwargs or {}))
        name = str(operation)
        if not name.startswith(VIEWS) and (not self.only or any(word in name for word in self.only)):
            tensors = [x for x in tree_leaves([args, kwargs, out]) if isinstance(x, torch.Tensor)]
            self.nbytes += sum(x.numel() * x.itemsize for x in tensors)
            self.seen.append(name)
        return out


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "n_in", "n_out"), [(1, 64, 128), (7, 96, 32), (300, 64, 64)])
def test_a_product_moves_what_torchs_takes_and_gives(rows, n_in, n_out, dtype):
    x, weight = torch.randn(rows, n_in, dtype=dtype), torch.randn(n_out, n_in, dtype=dtype)
    with Moved() as moved, FlopCounterMode(display=False) as counter:
        torch.nn.functional.linear(x, weight)
    predicted = product(rows, n_in, n_out, x.itemsize)
    assert predicted == Kernel(counter.get_total_flops(), moved.nbytes)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("double", [False, True])
def test_dequantizing_moves_what_bitsandbytes_takes_and_gives(double, dtype):
    """But for its tables: 256 float32 of the scales' code, and one of their mean, whatever the weight's size."""
    n_out, n_in = 512, 1024
    weight = torch.randn(n_out, n_in, dtype=dtype)
    packed, state = bnb.quantize_4bit(weight, quant_type="nf4", compress_statistics=double)
    with Moved() as moved:
        bnb.dequantize_4bit(packed, state)
    assert dequantizing(n_in, n_out, weight.itemsize, double).nbytes == moved.nbytes - (1024 + 4) * double, moved.seen


@pytest.mark.parametrize("double", [False, True])
def test_a_fused_product_reads_what_is_stored(double):
    rows, n_out, n_in = 1, 512, 1024
    x = torch.randn(rows, n_in, dtype=torch.bfloat16)
    packed, state = bnb.quantize_4bit(torch.randn(n_out, n_in), quant_type="nf4", compress_statistics=double)
    with Moved("gemm_4bit") as moved, torch.no_grad():
        bitsandbytes.matmul_4bit(x, packed, quant_state=state)
    assert len(moved.seen) == 1
    predicted = fused(rows, n_in, n_out, 2, double)
    assert predicted.nbytes == moved.nbytes - (1024 + 4) * double
    assert predicted.flops == product(rows, n_in, n_out).flops


@pytest.mark.parametrize("four_bits", [False, True])
def test_a_training_step_of_a_layer(four_bits):
    """A frozen layer's forward and its input's gradient: the products and dequantizings that autograd really runs."""
    from bitsandbytes.nn import Linear4bit, Params4bit

    rows, n_in, n_out = 24, 256, 128
    layer = torch.nn.Linear(n_in, n_out, bias=False).requires_grad_(False)
    if four_bits:
        weight, layer = layer.weight.data, Linear4bit(n_in, n_out, bias=False, compute_dtype=torch.float32)
        layer.weight = Params4bit(weight, requires_grad=False, quant_type="nf4", compress_statistics=False)
        layer.to("cpu")
    x = torch.randn(rows, n_in, requires_grad=True)
    with Moved("aten.mm", "4bit") as moved:
        layer(x).backward(torch.ones(rows, n_out))
    predicted = sum(k.nbytes for k in trained(rows, n_in, n_out, 4, four_bits, double=False))
    hidden = 2 * 4 * n_in * n_out if four_bits else 0  # inside gemm_4bit the CPU's kernel writes W, and reads it
    assert predicted == moved.nbytes + hidden
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        layer(x).backward(torch.ones(rows, n_out))
    names = [event.name for event in profile.events()]
    assert names.count("bitsandbytes::dequantize_4bit") == (2 if four_bits else 0)
    assert names.count("aten::mm") == 2
    again = trained(rows, n_in, n_out, 4, four_bits, double=False, again=True)
    assert len(again) == 3 * (2 if four_bits else 1)


@pytest.mark.parametrize("name", ["llama-grouped", "qwen2-tied", "gpt2", "olmo2"])
def test_one_token_reads_every_matrix_once(name):
    """A real model's forward on one token: its products alone, without attention's and the rotary frequencies'."""
    model = build(MODELS[name], TrainingPlan(attention="sdpa"), "cpu").eval()
    with Moved("aten.mm", "aten.addmm") as moved, torch.no_grad():
        model(torch.tensor([[3]]), use_cache=False)
    kernels = [product(1, n_in, n_out, 4) for n_in, n_out in matrices(MODELS[name])]
    biases = sum(t.numel for t in Architecture.of(MODELS[name]).tensors() if t.kind == "bias" and "norm" not in t.name)
    assert moved.nbytes == sum(kernel.nbytes for kernel in kernels) + 4 * biases


def test_flops_are_those_of_the_step():
    """All of a forward's but attention's scores and the rotary frequencies."""
    plan = TrainingPlan(batch=2, seq_len=24)
    kernels = [product(plan.tokens, n_in, n_out) for n_in, n_out in matrices(MODELS["llama-grouped"])]
    scores, turning = 3 * 4 * plan.tokens * plan.seq_len * 64, 16 * plan.seq_len
    assert sum(kernel.flops for kernel in kernels) == flops(MODELS["llama-grouped"], plan).forward - scores - turning


def test_one_token_on_a_t4_by_hand():
    """LLaMA-7B in 16 bits: 13.2 GB at 320 GB/s are 41 ms, and the FLOPs would take 0.2."""
    sizes = matrices("llama-7b")
    kernels = [product(1, n_in, n_out) for n_in, n_out in sizes]
    numel = sum(n_in * n_out for n_in, n_out in sizes)
    assert seconds(kernels, "T4") == pytest.approx(2 * numel / 320e9, rel=1e-3)
    assert sum(kernel.flops for kernel in kernels) / 65e12 < 0.01 * seconds(kernels, "T4")
    four = [fused(1, n_in, n_out) for n_in, n_out in sizes[:-1]] + kernels[-1:]
    assert 3.3 < seconds(kernels, "T4") / seconds(four, "T4") < 4


@pytest.mark.parametrize("card", GPUS)
def test_a_product_at_the_ridge_takes_as_long_by_flops_as_by_bytes(card):
    rows = rows_to_ridge(4096, 4096, card)
    below, above = product(int(rows), 4096, 4096), product(int(rows) + 1, 4096, 4096)
    assert below.intensity <= ridge(card) <= above.intensity
    assert ridge(card) == pytest.approx(GPUS[card].half / GPUS[card].bandwidth)


def test_a_narrow_matrix_never_reaches_the_ridge():
    assert rows_to_ridge(8, 4096, "T4") == float("inf")
    assert product(10**9, 8, 4096).intensity < ridge("T4")


@pytest.mark.parametrize("card", ["T4", "L4", "A100 80GB", "H100 80GB"])
def test_the_price_of_four_bits_falls_with_the_rows(card):
    """From times as long to nothing: dequantizing moves the same bytes for any batch."""
    ratios = []
    for rows in (1, 16, 64, 256, 1024, 4096, 16384):
        plain, four = (seconds(trained(rows, 4096, 4096, four_bits=bits), card) for bits in (False, True))
        ratios.append(four / plain)
        extra = 2 * dequantizing(4096, 4096).nbytes / GPUS[card].bandwidth
        assert four - plain == pytest.approx(extra)
    assert ratios == sorted(ratios, reverse=True) and ratios[0] > 2 and 1 < ratios[-1] < 1.1


def test_bitsandbytes_fuses_the_forward_of_few_rows_alone():
    """Its own rule for CUDA, taken out of its source, which does not import here: for LLaMA-7B's matrices."""
    path = Path(bitsandbytes.__file__).parent / "backends" / "cuda" / "ops.py"
    wanted = {"_gemm_4bit_use_custom_cuda", "_GEMM_4BIT_CUSTOM_FLOOR_M"}
    parts = [node for node in ast.parse(path.read_text()).body if wanted & _named(node)]
    assert len(parts) == 2
    for name, processors in (("T4", 40), ("RTX 3090", 82), ("RTX 4090", 128), ("A100 80GB", 108), ("H100 80GB", 132)):
        found = {"functools": functools, "torch": torch}
        found["_gpu_dispatch_props"] = lambda index, gpu=GPUS[name], n=processors: (n, *gpu.capability)
        exec(compile(ast.Module(parts, []), str(path), "exec"), found)
        rule = found["_gemm_4bit_use_custom_cuda"]
        for n_in, n_out in set(matrices("llama-7b")[:-1]):
            assert rule(0, torch.float16, 1, n_out, n_in) and rule(0, torch.float16, 4, n_out, n_in)
            assert not rule(0, torch.float16, 513, n_out, n_in)


def _named(node):
    targets = node.targets if isinstance(node, ast.Assign) else [node]
    return {getattr(target, "name", None) or getattr(target, "id", None) for target in targets}


def test_what_is_refused():
    with pytest.raises(ValueError, match="rows is 0"):
        product(0, 8, 8)
    with pytest.raises(ValueError, match="card is 'K80'; allowed"):
        ridge("K80")
