"""Mixtures of experts: transformers' own models, peft's own adapters, and the meter, on small real tensors."""

from __future__ import annotations

from unittest import mock

import pytest
import torch

from minigpt.memory import Architecture, TrainingPlan, predict
from minigpt.memory.engine.layers import Layers
from minigpt.memory.engine.tape import Tape
from minigpt.memory.families import experts
from minigpt.memory.measured.building import build
from minigpt.memory.measured.step import measure, measure_module
from tools.models import MIXTURES, MODELS

BUILT = {name: MODELS[name] for name in MIXTURES}
SMALL = {  # with few tokens to choose from, the peak is inside a block
    "qwen3-moe, normed": dict(MODELS["qwen3-moe"], vocab_size=16, norm_topk_prob=True, num_experts_per_tok=3),
    "mixtral, one of eight": dict(MODELS["mixtral"], vocab_size=16, num_experts_per_tok=1, num_key_value_heads=1),
    "mixtral, one of one": dict(MODELS["mixtral"], vocab_size=16, num_experts_per_tok=1, num_local_experts=1),
    "gpt-oss": dict(MODELS["gpt-oss"], vocab_size=16),
    "deepseek-v3": dict(MODELS["deepseek-v3"], vocab_size=16),
    "deepseek-v3, narrow values": dict(MODELS["deepseek-v3-narrow-values"], vocab_size=16),
    "qwen2-moe, normed": dict(MODELS["qwen2-moe"], vocab_size=16, norm_topk_prob=True, qkv_bias=False),
}  # fmt: skip
PLANS = {
    "fp32": dict(),
    "bf16, eager": dict(precision="bf16", attention="eager", holds="outputs", use_cache=True),
    "autocast": dict(precision="bf16-autocast"),
    "checkpointed": dict(precision="bf16", checkpointing="full"),
    "autocast over 16 bits": dict(method="lora", precision="bf16", autocast=True),
    "padded": dict(precision="bf16", sequences="padded"),
    "one token": dict(batch=1, seq_len=1),
    "lora": dict(method="lora", precision="bf16"),
    "lora on attention": dict(method="lora", targets="o", checkpointing="full"),
    "lora, scaled": dict(method="lora", rank=16, batch=1, seq_len=8),
    "lora, autocast": dict(method="lora", precision="bf16-autocast", checkpointing="full"),
    "rslora": dict(method="lora", variant="rslora", precision="bf16", adapter_dtype="same"),
    "qlora": dict(method="qlora", precision="bf16"),
    "qlora, not prepared": dict(method="qlora", precision="bf16", kbit_preparation=False, batch=1, seq_len=8),
}


def largest(step) -> dict:
    """Every bucket, the peak, and the largest instant of forward and of backward."""
    phases = {"forward": 0, "backward": 0}
    for phase, ledger in step.timeline():
        if phase in phases:
            phases[phase] = max(phases[phase], ledger.total)
    return dict(ledger=step.ledger, peak=step.peak.total, **phases)


@pytest.mark.parametrize("changes", PLANS.values(), ids=list(PLANS))
@pytest.mark.parametrize("config", SMALL.values(), ids=list(SMALL))
def test_predicted_to_the_byte(config, changes):
    plan = TrainingPlan(**{"batch": 3, "seq_len": 40, **changes})
    assert largest(predict(config, plan)) == largest(measure(config, plan, "cpu"))


def test_gpt_oss_has_eager_attention_alone():
    plans = [TrainingPlan(batch=3, seq_len=40, attention=attention) for attention in ("sdpa", "eager")]
    assert predict(MODELS["gpt-oss"], plans[0]).peak == measure(MODELS["gpt-oss"], plans[1], "cpu").peak


def test_a_card_without_the_kernel(monkeypatch):
    """transformers' replacement saves its input even of frozen experts, and makes their gradient to throw it away."""
    from transformers.integrations import moe

    plan = TrainingPlan(batch=3, seq_len=40, precision="bf16", method="lora", targets="q,v")
    with_kernel = predict(SMALL["mixtral, one of eight"], plan)
    monkeypatch.setattr(experts, "without_kernel", lambda plan: True)
    monkeypatch.setattr(moe, "_can_use_grouped_mm", lambda *args: False)
    predicted = predict(SMALL["mixtral, one of eight"], plan)
    assert largest(predicted) == largest(measure(SMALL["mixtral, one of eight"], plan, "cpu"))
    assert predicted.peak.total > with_kernel.peak.total


def test_cards_without_the_kernel():
    """The same question as transformers asks, of every card."""
    from transformers.integrations.moe import _can_use_grouped_mm

    from minigpt.memory.gpus import GPUS

    weight = mock.Mock(device=torch.device("cuda"), dtype=torch.bfloat16)
    for name, card in GPUS.items():
        with mock.patch("torch.cuda.get_device_capability", return_value=card.capability):
            assert experts.without_kernel(TrainingPlan(card=name)) != _can_use_grouped_mm(weight, weight, weight)


@pytest.mark.parametrize("config", BUILT.values(), ids=list(BUILT))
def test_grouped_mm_is_the_default(config):
    assert build(config, TrainingPlan(precision="bf16")).config._experts_implementation == "grouped_mm"


@pytest.mark.parametrize("config", BUILT.values(), ids=list(BUILT))
def test_memory_does_not_depend_on_the_routing(config):
    plan, steps = TrainingPlan(batch=3, seq_len=40), []
    for scale in (0.0, 1.0):  # a router of zeros gives all tokens the same experts
        model = build(config, plan)
        routers = [p for name, p in model.named_parameters() if name.endswith(("gate.weight", "router.weight"))]
        assert routers
        for router in routers:
            router.data = torch.randn(router.shape) * scale
        steps.append(largest(measure_module(model, plan)))
    assert steps[0] == steps[1]


@pytest.mark.parametrize("config", BUILT.values(), ids=list(BUILT))
def test_tensors_stand_in_the_models_order(config):
    ours = [tensor.shape for tensor in Architecture.of(config).tensors()]
    assert ours == [tuple(p.shape) for p in build(config, TrainingPlan(attention="eager")).parameters()]


@pytest.mark.parametrize("targets", ["all-linear", "all-linear,head", "o", "gate,up,o", "down"])
@pytest.mark.parametrize("config", BUILT.values(), ids=list(BUILT))
def test_adapters_are_pefts(config, targets):
    """Also where "all-linear" is what it was before transformers 5: experts and router, and no layer without them."""
    plan = TrainingPlan(method="lora", targets=targets)
    named = {tensor.name.split(".")[-1] for tensor in Architecture.of(config).tensors() if tensor.kind == "linear"}
    if not set(targets.split(",")) <= named | {"all-linear", "head"}:
        with pytest.raises(ValueError, match="targets has '(gate, up|down)'; allowed: all-linear, or some of"):
            plan.target_names(Architecture.of(config))
        return
    ours = [value.shape for value in Layers(Tape(), Architecture.of(config), plan).trained]
    assert ours == [tuple(p.shape) for p in build(config, plan).parameters() if p.requires_grad]


def test_lora_on_experts_holds_a_second_copy_of_them():
    config = MODELS["qwen3-moe"]
    stacks = [t for t in Architecture.of(config).tensors() if t.kind == "experts"]
    copies = 4 * sum(t.numel for t in stacks)
    few = dict(method="lora", batch=1, seq_len=1)
    held = [predict(config, TrainingPlan(targets=t, **few)).ledger.activations for t in ("all-linear", "q,k,v,o")]
    assert copies < held[0] - held[1] < 1.3 * copies


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("qwen3-moe", dict(output_router_logits=True), "output_router_logits is True; allowed: False"),
        ("qwen3-moe", dict(num_experts_per_tok=9), "top_k is 9; it must be at most 8"),
        ("qwen3-moe", dict(mlp_only_layers="0"), "mlp_only_layers is '0'; it must be a list"),
        ("qwen3-moe", dict(decoder_sparse_step=0), "decoder_sparse_step is 0"),
        (
            "qwen2-moe",
            dict(use_sliding_window=True, sliding_window=None),
            "sliding_window is None; layers with sliding",
        ),
        ("deepseek-v3", dict(num_key_value_heads=2), "num_key_value_heads is 2; it must be num_attention_heads"),
        ("deepseek-v3", dict(qk_rope_head_dim=5), "qk_rope_head_dim is 5; it must be even"),
        ("deepseek-v3", dict(n_group=3), "n_group is 3; it must divide n_routed_experts into groups of two or more"),
        ("deepseek-v3", dict(n_group=8), "n_group is 8; it must divide n_routed_experts into groups of two or more"),
        ("deepseek-v3", dict(topk_group=3), "topk_group is 3; it must be at most 2"),
        ("deepseek-v3", dict(scoring_func="softmax"), "scoring_func is 'softmax'; allowed: sigmoid"),
        ("gpt-oss", dict(layer_types=["full_attention"]), "layer_types has 1 items"),
        ("mixtral", dict(router_jitter_noise=1.5), "router_jitter_noise is 1.5; it must be a number from 0"),
        ("mixtral", dict(experts_implementation="eager"), "experts_implementation is 'eager'; allowed: None"),
    ],
)
def test_what_is_not_covered_is_named(name, changes, message):
    with pytest.raises(ValueError, match=message):
        predict({**MODELS[name], **changes}, TrainingPlan())


@pytest.mark.parametrize(
    ("changes", "plan", "message"),
    [
        (
            dict(moe_intermediate_size=36),
            dict(precision="bf16"),
            "expert_inner is 36; torch's grouped_mm takes multiples",
        ),
        (dict(), dict(method="lora", targets="gate,down"), "targets is 'gate,down'; peft takes gate and up for"),
        (dict(), dict(method="lora", lora_dropout=0.1), "lora_dropout is 0.1; peft has none for experts"),
        (dict(), dict(method="lora", variant="dora"), "variant is 'dora'; peft has none for experts"),
    ],
)
def test_plans_that_are_not_covered_are_named(changes, plan, message):
    with pytest.raises(ValueError, match=message):
        predict({**MODELS["qwen3-moe"], **changes}, TrainingPlan(**plan))


def test_torch_refuses_the_widths_that_are_refused():
    config = {**MODELS["qwen3-moe"], "moe_intermediate_size": 36}
    with pytest.raises(RuntimeError, match="strides should be multiple of 16 bytes"):
        measure(config, TrainingPlan(precision="bf16", seq_len=8), "cpu")
    plan = TrainingPlan(seq_len=8)  # 36 float32 are 144 bytes
    assert largest(predict(config, plan)) == largest(measure(config, plan, "cpu"))


@pytest.mark.parametrize("kind", ["dynamic", "yarn", "longrope", "linear", "llama3"])
def test_mixtral_without_head_dim_has_the_positions_that_transformers_makes(kind):
    rope = dict(rope_type=kind, factor=4.0, original_max_position_embeddings=32, rope_theta=1e4)
    rope |= dict(low_freq_factor=1.0, high_freq_factor=4.0) if kind == "llama3" else {}
    rope |= dict(short_factor=[1.0] * 4, long_factor=[1.0] * 4) if kind == "longrope" else {}
    config = dict(model_type="mixtral", vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
                  num_attention_heads=2, num_key_value_heads=2, num_local_experts=4, rope_scaling=rope)  # fmt: skip
    plan = TrainingPlan(batch=1, seq_len=16)
    if kind in ("linear", "llama3"):
        assert predict(config, plan).peak == measure(config, plan, "cpu").peak
        return
    with pytest.raises(ValueError, match=f"rope_type is '{kind}'"):
        predict(config, plan)
    with pytest.raises((TypeError, ValueError), match="NoneType"):
        measure(config, plan, "cpu")
