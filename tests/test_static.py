"""What stays from step to step, without the step; and bases in GPTQ and AWQ, by size only."""

from __future__ import annotations

import inspect
import math

import pytest
import torch

from minigpt.memory import Architecture, TrainingPlan, predict, predict_static
from minigpt.memory.engine.layers import GROUP
from minigpt.memory.plan import PRECISIONS
from tools.models import MODELS

WIDE = dict(MODELS["llama-grouped"], hidden_size=256, intermediate_size=384, head_dim=32)
STAYS = ("weights", "gradients", "optimizer")


@pytest.mark.parametrize(
    "words",
    [
        *[dict(precision=name) for name in PRECISIONS],
        dict(method="lora", precision="bf16"),
        dict(method="qlora", precision="bf16"),
        dict(method="qlora", precision="bf16", quantization="int8"),
        dict(method="lora", modules_to_save="head"),
        dict(optimizer="adamw8bit"),
        dict(step="first"),
    ],
    ids=str,
)
@pytest.mark.parametrize("model", ["llama-grouped", "gpt2"])
def test_it_is_what_a_step_keeps(model, words):
    plan = TrainingPlan(batch=2, seq_len=16, **words)
    static, ledger = predict_static(MODELS[model], plan), predict(MODELS[model], plan).ledger
    assert [getattr(static, name) for name in STAYS] == [getattr(ledger, name) for name in STAYS]
    assert static.activations == static.temporary == 0


def buffers(kind: str, n_in: int, n_out: int) -> list[torch.Tensor]:
    """What a layer of GPTQModel 7.7 (GPTQQuantLinear) or AutoAWQ 0.2.9 (WQLinear_GEMM) registers, as they have it."""
    groups, shapes = math.ceil(n_in / 128), {"gptq": (n_in // 32 * 4, n_out), "awq": (n_in, n_out // (32 // 4))}
    made = [torch.empty(shapes[kind], dtype=torch.int32, device="meta")]
    made.append(torch.empty((groups, n_out // 32 * 4), dtype=torch.int32, device="meta"))
    made.append(torch.empty((groups, n_out), dtype=torch.float16, device="meta"))
    return made + [torch.empty(n_in, dtype=torch.int32, device="meta")] * (kind == "gptq")


@pytest.mark.parametrize("kind", ["gptq", "awq"])
def test_a_base_is_as_large_as_its_layers_tensors(kind):
    words = dict(method="qlora", precision="fp16", kbit_preparation=False)
    static = predict_static(WIDE, TrainingPlan(quantization=kind, **words))
    nf4 = predict_static(WIDE, TrainingPlan(**words))
    assert (static.gradients, static.optimizer) == (nf4.gradients, nf4.optimizer)
    tensors = [t for t in Architecture.of(WIDE).tensors() if t.kind == "linear"]
    lora = predict_static(WIDE, TrainingPlan(**dict(words, method="lora")))
    packed = sum(b.nbytes for t in tensors for b in buffers(kind, t.shape[1], t.shape[0]))
    assert lora.weights - static.weights == sum(2 * t.numel for t in tensors) - packed


@pytest.mark.parametrize(
    ("model", "kind", "published"),
    [
        ("llama-2-7b", "gptq", 3.90),  # TheBloke/Llama-2-7b-Chat-GPTQ, main, whose layers also have biases of zeros
        ("llama-2-7b", "awq", 3.89),  # TheBloke/meditron-7B-AWQ, a Llama-2-7B with 17 words more
    ],
)
def test_published_checkpoints_are_as_large(model, kind, published):
    plan = TrainingPlan(
        method="qlora", precision="fp16", quantization=kind, kbit_preparation=False, targets="q", rank=1
    )
    static = predict_static(model, plan)
    base = static.weights - static.gradients  # float32 adapters are as large as their gradients
    assert base / 1e9 == pytest.approx(published, rel=0.002)


def test_what_the_libraries_do_by_default():
    from peft import prepare_model_for_kbit_training
    from transformers import AwqConfig, GPTQConfig

    assert GPTQConfig(bits=4).group_size == AwqConfig().group_size == GROUP == 128 and AwqConfig().bits == 4
    assert "not is_gptq_quantized" in inspect.getsource(prepare_model_for_kbit_training)  # else float32 norms
    sizes = [
        [predict_static(WIDE, TrainingPlan(method="qlora", precision="fp16", quantization=kind, kbit_preparation=on))
         for on in (True, False)]
        for kind in ("gptq", "awq")
    ]  # fmt: skip
    assert sizes[0][0] == sizes[0][1] and sizes[1][0].weights > sizes[1][1].weights


@pytest.mark.parametrize(
    ("model", "words", "match"),
    [
        (WIDE, {}, "quantization is 'gptq', whose kernels are not followed: .*; what stays from step to step is"),
        (MODELS["llama-grouped"], {}, r"quantization is 'gptq'; it packs outputs by 8 and inputs by 128, unlike .*"),
        (WIDE, dict(variant="dora"), "variant is 'dora'; with quantization 'gptq' peft has none"),
        (MODELS["mixtral"], dict(targets="q,v"), "quantization is 'gptq'; a mixture's experts are not covered by it"),
        (MODELS["minigpt"], {}, "quantization is 'gptq'; MiniGPT has 'nf4' only"),
    ],
    ids=["step", "widths", "dora", "experts", "minigpt"],
)
def test_the_step_and_what_cannot_be_packed_are_refused_by_name(model, words, match):
    with pytest.raises(ValueError, match=match):
        predict(model, TrainingPlan(seq_len=8, method="qlora", precision="fp16", quantization="gptq", **words))
