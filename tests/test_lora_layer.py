"""One layer with its adapter against peft's: outputs, gradients, the start, the bytes of a step."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from minigpt import lora
from minigpt.lora import KINDS, LoRALinear
from minigpt.memory.measured.step import measure_module
from minigpt.memory.plan import TrainingPlan
from tests.adapted import BATCHES, CLOSE, biased, gradients, pair, tiny


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_and_gradients_equal_peft(kind):
    ours, theirs = pair(kind)
    tokens, targets = BATCHES[0]
    torch.testing.assert_close(ours(tokens), theirs(tokens), **CLOSE)
    assert not torch.allclose(ours(tokens), tiny()(tokens), atol=1e-3)  # the adapters did something
    ours(tokens, targets).backward()
    theirs(tokens, targets).backward()
    expected = gradients(theirs)
    for key, p in lora.adapter_tensors(ours).items():
        assert p.grad.abs().max() > 0
        torch.testing.assert_close(p.grad, expected[key], **CLOSE)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", ["fp32", "dropout", "bf16 base", "autocast"])
def test_layers_with_a_bias_equal_peft(kind, case):
    base = biased().to(torch.bfloat16 if case == "bf16 base" else torch.float32)
    ours, theirs = pair(kind, base, ["0", "2"], dropout=0.3 if case == "dropout" else 0.0)
    x = torch.randn(5, 16, generator=torch.Generator().manual_seed(2)).to(base[0].weight.dtype)
    outputs = []
    for model in (ours, theirs):
        torch.manual_seed(3)  # of the dropout
        with torch.autocast("cpu", torch.bfloat16, enabled=case == "autocast"):
            outputs.append(model.train()(x))
        outputs[-1].float().square().sum().backward()
    assert outputs[0].dtype == outputs[1].dtype
    torch.testing.assert_close(*outputs, **CLOSE)
    expected = gradients(theirs)
    for key, p in lora.adapter_tensors(ours).items():
        torch.testing.assert_close(p.grad, expected[key], **CLOSE)


def test_the_start_is_a_linear_layers_own_and_changes_nothing():
    tokens = BATCHES[0][0]
    for kind in KINDS:
        layer = LoRALinear(nn.Linear(64, 48), 4, kind=kind, generator=torch.Generator().manual_seed(5))
        torch.manual_seed(5)
        assert torch.equal(layer.lora_A, nn.Linear(64, 4, bias=False).weight)  # kaiming-uniform, a = sqrt(5)
        assert not layer.lora_B.any()
        assert {name for name, p in layer.named_parameters() if not p.requires_grad} == {"base.weight", "base.bias"}
        model = tiny().eval()
        expected = model(tokens)
        lora.inject(model, 4, 8, "all-linear", kind, dropout=0.5)
        assert not any(module.training for module in model.modules())
        torch.testing.assert_close(model(tokens), expected, **CLOSE)
    assert LoRALinear(nn.Linear(8, 8), 4, 16).scaling == 4
    assert LoRALinear(nn.Linear(8, 8), 4, 16, "rslora").scaling == 8


class Packed(nn.Module):
    """A linear layer that keeps its weight in another form, as a quantized one does."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.register_buffer("eighths", (weight * 8).round().to(torch.int8))

    def dequantize(self) -> torch.Tensor:
        return self.eighths / 8

    def requantize(self, weight: torch.Tensor) -> None:
        self.eighths = (weight * 8).round().to(torch.int8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.dequantize())


@pytest.mark.parametrize("kind", KINDS)
def test_a_base_may_keep_its_weight_in_another_form(kind):
    packed = nn.Sequential(Packed(torch.randn(24, 16)))
    plain = nn.Sequential(nn.Linear(16, 24, bias=False))
    plain[0].weight.data = packed[0].dequantize()
    x = torch.randn(5, 16)
    results = []
    for model in (plain, packed):
        lora.inject(model, 4, 8, "all-linear", kind, generator=torch.Generator().manual_seed(0))
        nn.init.constant_(model[0].lora_B, 0.1)
        y = model(x)
        y.sum().backward()
        results.append([y.detach(), *(p.grad for p in lora.adapter_tensors(model).values())])
        lora.merge(model)
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)
    assert torch.equal(packed[0].base.dequantize(), (plain[0].base.weight * 8).round() / 8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["lora", "rslora"])  # for DoRA, peft also has an identity matrix for a moment
def test_a_step_takes_the_bytes_that_peft_takes(kind, dtype):
    ours, theirs = pair(kind, tiny().to(dtype))
    plan = TrainingPlan(batch=2, seq_len=16)
    one, other = measure_module(ours, plan), measure_module(theirs.base_model.model, plan)
    for name in ("ledger", "peak", "peak_at", "frozen"):
        assert getattr(one, name) == getattr(other, name), name
