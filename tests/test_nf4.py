"""NF4 byte for byte against bitsandbytes on the CPU, and its layer against dequantize and F.linear."""

from __future__ import annotations

import logging
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from minigpt import nf4, scales
from minigpt.lora import inject
from minigpt.memory.measured.meter import MemoryMeter
from minigpt.model import GPT, GPTConfig
from minigpt.optim import blockwise

logging.getLogger("bitsandbytes").setLevel(logging.CRITICAL)  # it reports a kernel that only inference would use
with warnings.catch_warnings():  # torch's own, when bitsandbytes makes it load its compiler
    warnings.filterwarnings("ignore", "`torch.jit.script_method` is deprecated", DeprecationWarning)
    import bitsandbytes

reference = bitsandbytes.functional

DTYPES = [pytest.param(dtype, id=str(dtype).removeprefix("torch.")) for dtype in nf4.DTYPES]
SHAPES = [(64, 64), (48, 256), (768, 192), (33, 128), (40960,)]  # the last are more than a chunk
CONFIG = GPTConfig(n_layer=2, n_embd=64, n_head=2, context=16)


def normal(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def codes(weight: nf4.QuantizedWeight) -> torch.Tensor:
    return torch.stack([weight.packed >> 4, weight.packed & 15], dim=1).flatten()[: weight.shape.numel()]


# ---------------------------------------------------------------- tables


def test_the_code_is_bitsandbytes_and_follows_from_normal_quantiles():
    assert list(nf4.NF4_CODE) == reference.get_4bit_type("nf4", device="cpu").tolist()
    assert nf4.derive_code() == pytest.approx(nf4.NF4_CODE, abs=1e-6)
    assert 1 - (1 / 30 + 1 / 32) / 2 == pytest.approx(0.9677083, abs=1e-7)


@pytest.mark.parametrize("signed", [True, False])
def test_the_dynamic_map_is_bitsandbytes_bit_for_bit(signed):
    assert scales.dynamic_map(signed).equal(reference.create_dynamic_map(signed))


def test_the_tables_do_not_depend_on_where_they_are_first_made():
    from torch._subclasses.fake_tensor import FakeTensorMode

    expected = scales.dynamic_map()
    for context in (FakeTensorMode(), torch.device("meta")):
        blockwise._dynamic_values.cache_clear()
        with context:
            scales.dynamic_map()
        assert scales.dynamic_map().equal(expected)


# ---------------------------------------------------------------- quantize and dequantize


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_bytes_absmax_and_values_are_those_of_bitsandbytes(dtype, shape):
    weight = normal(*shape, dtype=dtype) * 0.02
    packed, state = reference.quantize_4bit(weight, quant_type="nf4")
    ours = nf4.quantize(weight)
    assert ours.packed.equal(packed.flatten()) and ours.packed.dtype == torch.uint8
    assert ours.absmax.equal(state.absmax) and ours.absmax.dtype == torch.float32
    theirs = ours._replace(packed=packed.flatten(), absmax=state.absmax)
    restored = nf4.dequantize(theirs)
    assert restored.dtype == dtype and restored.shape == weight.shape
    assert restored.equal(reference.dequantize_4bit(packed, state).view(shape))


@pytest.mark.parametrize("block", [32, 128, 1024])
def test_other_blocks_are_those_of_bitsandbytes(block):
    weight = normal(96, 1024)
    packed, state = reference.quantize_4bit(weight, quant_type="nf4", blocksize=block)
    ours = nf4.quantize(weight, block)
    assert ours.packed.equal(packed.flatten()) and ours.absmax.equal(state.absmax)
    assert nf4.dequantize(ours).equal(reference.dequantize_4bit(packed, state))


@pytest.mark.parametrize("shape", [(1,), (7,), (63,), (130,), (5, 13), (64, 65), (333, 101)], ids=str)
def test_a_short_last_block_and_an_odd_weight_are_as_in_bitsandbytes(shape):
    weight = normal(*shape)
    packed, state = reference.quantize_4bit(weight, quant_type="nf4")
    ours = nf4.quantize(weight)
    assert ours.packed.equal(packed.flatten()) and ours.absmax.equal(state.absmax)
    # Not bitsandbytes' own dequantizing: 0.50 on a CPU is wrong for rows that no block fits, as (10, 96).
    code, scale = torch.tensor(nf4.NF4_CODE), ours.absmax.repeat_interleave(64)[: weight.numel()]
    assert nf4.dequantize(ours).equal((code[codes(ours).int()] * scale).view(shape))


@pytest.mark.parametrize("dtype", DTYPES)
def test_each_code_is_the_nearest_value_and_a_tie_takes_the_lower(dtype):
    weight = normal(64, 64, dtype=dtype, seed=1)
    ours = nf4.quantize(weight)
    scaled = weight.float().view(-1, 64) / ours.absmax[:, None]
    distance = (scaled.flatten()[:, None] - torch.tensor(nf4.NF4_CODE)).abs().double()  # (n, 16)
    chosen = distance.gather(1, codes(ours).long()[:, None])[:, 0]
    torch.testing.assert_close(chosen, distance.amin(1), rtol=0, atol=1e-7)
    values = torch.tensor(nf4.NF4_CODE)
    ties = torch.cat([(values[1:] + values[:-1]) / 2, torch.ones(1)])  # absmax 1: each a midpoint
    assert codes(nf4.quantize(ties)).tolist() == list(range(16))


def test_blocks_of_zeros_decode_to_zeros():
    weight = normal(4, 64)
    weight[1], weight[3, 5:] = 0, 0
    restored = nf4.dequantize(nf4.quantize(weight))
    assert not restored[1].any() and not restored[3, 5:].any() and restored[0].any()
    assert not nf4.dequantize(nf4.quantize(torch.zeros(300), double_quantization=True)).any()


def test_the_error_on_normal_weights():
    weight = normal(1024, 1024)
    for nested in (False, True):
        error = nf4.dequantize(nf4.quantize(weight, double_quantization=nested)) - weight
        assert error.abs().mean().item() == pytest.approx(0.0729, abs=0.001)
        assert (error.norm() / weight.norm()).item() == pytest.approx(0.092, abs=0.002)


def test_a_strided_weight_is_read_in_its_own_order():
    weight = normal(128, 64)
    assert nf4.quantize(weight.t()).packed.equal(nf4.quantize(weight.t().contiguous()).packed)


def test_refused_weights():
    for bad in (float("nan"), float("inf"), -float("inf")):
        weight = normal(3, 64)
        weight[2, 7] = bad
        with pytest.raises(ValueError, match="q_proj.weight holds NaN or infinity"):
            nf4.quantize(weight, name="q_proj.weight")
    with pytest.raises(ValueError, match=r"shape \(0, 64\); it must have at least one element"):
        nf4.quantize(torch.empty(0, 64))
    for dtype in (torch.float64, torch.int8):
        with pytest.raises(ValueError, match=f"weight is {dtype}; allowed: torch.float32"):
            nf4.quantize(torch.zeros(64, dtype=dtype))
    with pytest.raises(ValueError, match="double_quantization is 'no'; it must be True or False"):
        nf4.quantize(normal(64), double_quantization="no")
    for block in (True, 0, -64, 63, 64.0):
        with pytest.raises(ValueError, match=f"block is {block}; it must be an even number"):
            nf4.quantize(normal(64), block)


# ---------------------------------------------------------------- double quantization and bytes


@pytest.mark.parametrize("dtype", DTYPES)
def test_nested_statistics_are_those_of_bitsandbytes_to_one_code(dtype):
    weight = normal(1024, 640, dtype=dtype) * 0.02
    _, state = reference.quantize_4bit(weight, quant_type="nf4", compress_statistics=True)
    ours = nf4.quantize(weight, double_quantization=True).absmax
    assert ours.offset.equal(state.offset) and ours.absmax.equal(state.state2.absmax)
    difference = (ours.codes.int() - state.absmax.int()).abs()
    assert difference.max() <= 1 and (difference > 0).float().mean() < 0.005  # bitsandbytes' CPU look-up is coarse
    absmax = nf4.quantize(weight).absmax
    restored = nf4.dequantize_statistics(ours)
    torch.testing.assert_close(restored, absmax, rtol=1e-2, atol=0)
    theirs = reference.dequantize_blockwise(state.absmax, state.state2) + state.offset
    torch.testing.assert_close(theirs, absmax, rtol=1e-2, atol=0)
    on_their_codes = nf4.dequantize_statistics(nf4.Statistics(state.absmax, state.state2.absmax, state.offset))
    assert on_their_codes.equal(theirs)


def test_nested_codes_are_the_nearest():
    absmax = normal(1000).abs() + 2
    ours = nf4.quantize_statistics(absmax)
    scaled = (absmax - ours.offset) / ours.absmax.repeat_interleave(256)[:1000]
    distance = (scaled[:, None] - reference.create_dynamic_map()).abs().double()
    chosen = distance.gather(1, ours.codes.long()[:, None])[:, 0]
    torch.testing.assert_close(chosen, distance.amin(1), rtol=0, atol=1e-7)


def test_bytes_of_the_storages():
    n = 512 * 512
    weight = normal(512, 512)
    plain, nested = nf4.quantize(weight), nf4.quantize(weight, double_quantization=True)
    assert nf4.storage_bytes(plain) == n / 2 + n / 64 * 4 == 0.5625 * n
    assert nf4.storage_bytes(nested) == n / 2 + n / 64 + n / 64 / 256 * 4 + 4
    assert (nf4.storage_bytes(nested) - 4) / n == pytest.approx(0.515869, abs=5e-7)
    packed, state = reference.quantize_4bit(weight, quant_type="nf4", compress_statistics=True)
    theirs = [packed, state.absmax, state.state2.absmax, state.offset]
    assert nf4.storage_bytes(nested) == sum(tensor.untyped_storage().nbytes() for tensor in theirs)


# ---------------------------------------------------------------- NF4Linear


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("nested", [True, False])
def test_the_layer_is_dequantize_and_linear(dtype, nested):
    linear = nn.Linear(96, 64, bias=True, dtype=dtype)
    layer = nf4.NF4Linear(linear, double_quantization=nested)
    x, y = normal(2, 5, 96, dtype=dtype).requires_grad_(), normal(2, 5, 96, dtype=dtype).requires_grad_()
    weight = nf4.dequantize(nf4.quantize(linear.weight, double_quantization=nested))
    ours, theirs = layer(x), F.linear(y, weight, linear.bias.detach())
    assert ours.equal(theirs) and layer.dequantize().equal(weight)
    grad = normal(2, 5, 64, dtype=dtype, seed=2)
    torch.testing.assert_close(*torch.autograd.grad(ours, x, grad), *torch.autograd.grad(theirs, y, grad))
    assert not [parameter for parameter in layer.parameters() if parameter.requires_grad]


def test_the_gradient_against_finite_differences():
    layer = nf4.NF4Linear(nn.Linear(8, 6), block=16)
    x = normal(3, 8).double().requires_grad_()
    assert torch.autograd.gradcheck(layer, x) and torch.autograd.gradgradcheck(layer, x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_layer_is_bitsandbytes_linear4bit(dtype):
    linear = nn.Linear(128, 192, bias=True, dtype=dtype)
    theirs = bitsandbytes.nn.LinearNF4(128, 192, compute_dtype=dtype, compress_statistics=False)
    theirs.load_state_dict(linear.state_dict())
    theirs.weight = bitsandbytes.nn.Params4bit(
        linear.weight.detach(), requires_grad=False, quant_type="nf4", compress_statistics=False
    ).to("cpu")
    theirs.bias = nn.Parameter(linear.bias.detach(), requires_grad=False)
    ours = nf4.NF4Linear(linear, double_quantization=False)
    x, grad = normal(7, 128, dtype=dtype).requires_grad_(), normal(7, 192, dtype=dtype)
    a, b = ours(x), theirs(x)
    torch.testing.assert_close(a, b)
    torch.testing.assert_close(*torch.autograd.grad(a, x, grad), *torch.autograd.grad(b, x, grad))


def test_compute_dtype_is_for_inside_only():
    linear = nn.Linear(64, 64, dtype=torch.bfloat16)
    layer = nf4.NF4Linear(linear, compute_dtype=torch.bfloat16)
    x = normal(4, 64).requires_grad_()
    y = layer(x)
    assert y.dtype == torch.float32
    assert y.equal(F.linear(x.bfloat16(), layer.dequantize(), linear.bias).float())
    y.sum().backward()
    assert x.grad.dtype == torch.float32


def test_nothing_but_the_packed_weight_is_kept_for_backward():
    layer = nf4.NF4Linear(nn.Linear(256, 256, bias=False))
    x = normal(32, 256).requires_grad_()
    with MemoryMeter(layer, inputs=(x,)) as meter:
        y = layer(x)
        del y
        y = layer(x)
        after_forward = meter.live
    assert meter.result().peak.activations == 0
    assert after_forward == nf4.storage_bytes(layer) + (x.numel() + y.numel()) * 4


def test_changing_the_dtype_leaves_the_buffers_and_moves_no_value():
    layer = nf4.NF4Linear(nn.Linear(64, 64, bias=False))
    before = {name: tensor.clone() for name, tensor in layer.state_dict().items()}
    assert sorted(before) == ["absmax", "codes", "offset", "packed"]
    for changed in (layer.bfloat16(), layer.half(), layer.to(torch.float64)):
        assert all(tensor.dtype == before[name].dtype for name, tensor in changed.state_dict().items())
        assert all(tensor.equal(before[name]) for name, tensor in changed.state_dict().items())


def test_a_state_dict_restores_the_layer_and_requantize_changes_it():
    first, second = (nf4.NF4Linear(nn.Linear(64, 128)) for _ in range(2))
    assert not first.dequantize().equal(second.dequantize())
    second.load_state_dict(first.state_dict())
    assert first.dequantize().equal(second.dequantize())
    weight = normal(128, 64)
    second.requantize(weight)
    assert second.dequantize().equal(nf4.dequantize(nf4.quantize(weight, double_quantization=True)))


def test_it_works_on_meta_and_fake_tensors_whatever_the_default_dtype():
    from torch._subclasses.fake_tensor import FakeTensorMode

    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.bfloat16)
        with torch.device("meta"):
            assert nf4.NF4Linear(nn.Linear(64, 64)).absmax.dtype == torch.float32
        with FakeTensorMode():
            layer = nf4.NF4Linear(nn.Linear(64, 64))
            x = torch.empty(3, 64, requires_grad=True)
            layer(x).sum().backward()
            assert x.grad.shape == (3, 64) and x.grad.dtype == torch.bfloat16
        layer = nf4.NF4Linear(nn.Linear(64, 64))
        assert layer.absmax.dtype == layer.offset.dtype == torch.float32
        assert layer.dequantize(torch.float32).equal(nf4.dequantize(layer.quantized, torch.float32))
    finally:
        torch.set_default_dtype(before)


# ---------------------------------------------------------------- quantize_model


def quantized_gpt(**options) -> tuple[GPT, list[str]]:
    torch.manual_seed(0)
    model = GPT(CONFIG)
    return model, nf4.quantize_model(model, **options)


def test_all_linear_leaves_the_tied_head_embeddings_and_norms():
    original = GPT(CONFIG)
    model, names = quantized_gpt(compute_dtype=torch.bfloat16)
    linears = [name for name, module in original.named_modules() if isinstance(module, nn.Linear)]
    assert names == [name for name in linears if name != "lm_head"] and len(names) == 12
    assert [n for n, m in model.named_modules() if isinstance(m, nf4.NF4Linear)] == names
    assert model.lm_head.weight is model.token_embedding.weight
    assert all(parameter.dtype == torch.float32 and parameter.requires_grad for parameter in model.parameters())
    n = 12 * CONFIG.n_layer * CONFIG.n_embd**2  # (each matrix has a multiple of 64 weights; few have one of 16,384)
    a2 = sum(-(-model.get_submodule(name).quantized.shape.numel() // 2**14) for name in names)
    rest = sum(p.numel() * 4 for p in model.parameters())
    assert nf4.storage_bytes(model) == n / 2 + n / 64 + 4 * a2 + 4 * 12 + rest
    tokens = torch.randint(256, (2, 16))
    assert torch.isfinite(model(tokens, tokens))


def test_a_head_that_is_not_tied_is_skipped_by_name():
    model = GPT(CONFIG)
    model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone())
    assert "lm_head" in nf4.quantize_model(model, skip=())
    model = GPT(CONFIG)
    model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone())
    assert "lm_head" not in nf4.quantize_model(model)


def test_targets_by_name_and_refused_ones():
    model, names = quantized_gpt(targets=["q_proj", "blocks.1.mlp.up_proj"])
    assert names == ["blocks.0.attn.q_proj", "blocks.1.attn.q_proj", "blocks.1.mlp.up_proj"]
    before = GPT(CONFIG)
    for targets, message in (
        (["q_proj", "gate_proj"], "targets has 'gate_proj', but no linear layer has that name; allowed: 'all-linear'"),
        (["lm_head"], "targets has 'lm_head', whose weight is another module's too"),
        ("q_proj", "targets is 'q_proj'; allowed: 'all-linear', or a list of q_proj"),
        ([], r"targets is \[\]"),
    ):
        with pytest.raises(ValueError, match=message):
            nf4.quantize_model(before, targets)
    before.blocks[1].mlp.up_proj.weight.data[0, 0] = float("nan")
    with pytest.raises(ValueError, match="blocks.1.mlp.up_proj.weight holds NaN"):
        nf4.quantize_model(before)
    assert not [module for module in before.modules() if isinstance(module, nf4.NF4Linear)]


def test_lora_on_top_trains_and_leaves_the_base_bits():
    model, names = quantized_gpt()
    base = {name: buffer.clone() for name, buffer in model.named_buffers()}
    assert sorted(inject(model, rank=4, targets="all-linear")) == sorted(names)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-2)
    tokens = torch.randint(256, (2, 16), generator=torch.Generator().manual_seed(0))
    losses = []
    for _ in range(8):
        loss = model(tokens, tokens)
        loss.backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in trained)
        assert all(p.grad is None for p in model.parameters() if not p.requires_grad)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert model.blocks[0].attn.q_proj.lora_B.abs().max() > 0  # the gradient came down to the first block
    assert losses[-1] < losses[0] - 0.1
    after = {name.replace(".base.", "."): buffer for name, buffer in model.named_buffers()}
    assert all(buffer.equal(after[name]) for name, buffer in base.items())
