"""measure() on real libraries: figures measured elsewhere, any model on fake tensors, every word of the plan."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch._subclasses import fake_tensor

from minigpt.memory import MemoryMeter, TrainingPlan, describe, measure_evaluation
from minigpt.memory.measured import step as step_module
from minigpt.memory.measured.building import build
from minigpt.memory.measured.fakes import fake_tensors, make_fake
from minigpt.memory.measured.step import measure, measure_module
from minigpt.model import GPTConfig
from minigpt.optim import KahanAdamW
from tools.models import gpt2, llama

pytestmark = pytest.mark.usefixtures("quick_and_quiet")
NO_TOKENS = dict(pad_token_id=None, bos_token_id=None, eos_token_id=None)


def sized(vocab, width, inner, layers, heads, kv_heads, **more) -> dict:
    return dict(
        model_type="llama", vocab_size=vocab, hidden_size=width, intermediate_size=inner, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=kv_heads, tie_word_embeddings=False, **NO_TOKENS, **more,
    )  # fmt: skip


WIDE_HEAD, GROUPED = sized(4096, 256, 704, 4, 4, 4), sized(512, 128, 352, 4, 8, 2)
LORA = dict(method="lora", precision="bf16", batch=2, seq_len=256, optimizer_loop="single")
FULL = dict(batch=2, seq_len=1024, optimizer_loop="single")
SEVEN = dict(method="lora", precision="bf16", batch=4, seq_len=512)
READ = {  # MB at the peak, and of activations where they were read too: measured apart from this code
    "LoRA": (WIDE_HEAD, LORA, 73.65, 44.36),
    "its dropout": (WIDE_HEAD, dict(LORA, lora_dropout=0.05), 90.43, 61.13),
    "autocast": (WIDE_HEAD, dict(LORA, autocast=True), 64.55, None),
    "both": (WIDE_HEAD, dict(LORA, autocast=True, lora_dropout=0.05), 81.33, None),
    "embedding and head saved": (WIDE_HEAD, dict(LORA, modules_to_save="embedding,head"), 87.02, None),
    "no mask": (GROUPED, FULL, 108.06, None),
    "padded": (GROUPED, dict(FULL, sequences="padded"), 147.92, None),
    "7B": ("llama-7b", SEVEN, 32_479, None),
    "7B, autocast": ("llama-7b", dict(SEVEN, autocast=True), 27_847, None),
    "7B, 4 bits, checkpointing": ("llama-7b", dict(SEVEN, method="qlora", checkpointing="full"), 6_525, None),
}


@pytest.mark.slow
@pytest.mark.parametrize(("model", "plan", "peak", "activations"), READ.values(), ids=list(READ))
def test_figures_measured_elsewhere(model, plan, peak, activations):
    step = measure(model, TrainingPlan(**plan))
    digits = 2 if peak < 1000 else 0
    assert round(step.peak.total / 1e6, digits) == peak
    assert activations is None or round(step.ledger.activations / 1e6, digits) == activations


def test_saved_modules_are_trained_in_the_bases_dtype():
    model = build(WIDE_HEAD, TrainingPlan(**LORA, modules_to_save="embedding,head"))
    trained = [p for p in model.parameters() if p.requires_grad]
    assert sum(p.numel() for p in trained) == 2_254_848
    assert {p.dtype for p in trained if p.shape[0] == 4096} == {torch.bfloat16}


SMALL = dict(
    vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
    max_position_embeddings=128, **NO_TOKENS,
)  # fmt: skip
GROUPS, EXPERTS = dict(num_key_value_heads=2, head_dim=16), dict(num_experts_per_tok=2, moe_intermediate_size=32)
MODELS = {  # each for something that a model does: a value it reads, a way to attend, experts, an encoder
    "gemma": GROUPS,
    "gemma2": dict(GROUPS, sliding_window=16, query_pre_attn_scalar=16),
    "gemma3_text": dict(GROUPS, sliding_window=16, query_pre_attn_scalar=16),
    "opt": dict(ffn_dim=128, word_embed_proj_dim=64),
    "bloom": dict(n_head=4, n_layer=2),
    "falcon": {},
    "gpt_neox": {},
    "phi3": GROUPS,
    "mixtral": dict(GROUPS, num_local_experts=4, num_experts_per_tok=2),
    "qwen3_moe": dict(GROUPS, num_experts=4, **EXPERTS),
    "gpt_oss": dict(GROUPS, num_local_experts=4, num_experts_per_tok=2, sliding_window=16),
    "deepseek_v3": dict(
        EXPERTS, num_key_value_heads=4, n_routed_experts=4, n_group=1, topk_group=1, q_lora_rank=32, kv_lora_rank=16,
        qk_nope_head_dim=16, qk_rope_head_dim=16, v_head_dim=16, first_k_dense_replace=1,
    ),
    "gptj": dict(n_embd=64, n_head=4, n_layer=2, rotary_dim=8, n_positions=128),
    "mpt": dict(d_model=64, n_heads=4, n_layers=2, max_seq_len=128),
    "bart": dict(
        d_model=64, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4, decoder_attention_heads=4,
        encoder_ffn_dim=128, decoder_ffn_dim=128, pad_token_id=1, bos_token_id=0, eos_token_id=2,
        decoder_start_token_id=2, forced_eos_token_id=2,
    ),
    "t5": dict(d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, pad_token_id=0, decoder_start_token_id=0),
    "bert": dict(pad_token_id=0),
}  # fmt: skip


def configured(model_type: str) -> dict:
    return {**SMALL, "model_type": model_type, **MODELS[model_type]}


@pytest.mark.slow
@pytest.mark.parametrize("model_type", MODELS)
@pytest.mark.parametrize("method", ["full", "lora"])
def test_any_model_is_metered_on_fake_tensors(model_type, method):
    plan = TrainingPlan(batch=2, seq_len=32, precision="bf16", method=method, optimizer="sgd")
    fake, real = (measure(configured(model_type), plan, device) for device in ("fake", "cpu"))
    assert (fake.ledger, fake.peak) == (real.ledger, real.peak)
    if method == "full":
        assert fake.trainable == 2 * build(configured(model_type), plan).num_parameters()


@pytest.mark.parametrize("sequences", ["padded", "packed"])
@pytest.mark.parametrize("model_type", ["gemma2", "opt", "falcon", "gpt_neox", "qwen3_moe", "gpt_oss"])
def test_masks_are_those_of_real_tensors(model_type, sequences):
    plan = TrainingPlan(batch=2, seq_len=32, sequences=sequences, optimizer="sgd")
    fake, real = (measure(configured(model_type), plan, device) for device in ("fake", "cpu"))
    assert (fake.ledger, fake.peak) == (real.ledger, real.peak)


DROPPED = gpt2(resid_pdrop=0.1, embd_pdrop=0.1, attn_pdrop=0.1)
ADAPTED, FOUR_BITS = dict(method="lora", precision="bf16"), dict(method="qlora", precision="bf16")
WORDS = [
    (DROPPED, {}), (DROPPED, dict(attention="eager")), (llama(attention_dropout=0.1), dict(sequences="padded")),
    (llama(), dict(ADAPTED, lora_dropout=0.1, variant="dora")), (llama(), dict(ADAPTED, targets="q,v,head")),
    (llama(), dict(ADAPTED, targets="all-linear,head", autocast=True)), (gpt2(), dict(ADAPTED, targets="qkv,down")),
    (llama(), dict(ADAPTED, modules_to_save="head")), (llama(), dict(precision="bf16", autocast=True)),
    (llama(), FOUR_BITS), (llama(), dict(FOUR_BITS, double_quantization=False, checkpointing="full")),
    (llama(), dict(FOUR_BITS, variant="dora")), (llama(), dict(FOUR_BITS, variant="dora", adapter_dtype="same")),
    (llama(), dict(FOUR_BITS, adapter_dtype="same", kbit_preparation=False, autocast=True)),
    (llama(), dict(FOUR_BITS, quantization="int8")), (llama(), dict(FOUR_BITS, quantization="int8", autocast=True)),
    (llama(), dict(optimizer="adamw8bit")), (llama(), dict(optimizer="paged_adamw_8bit", precision="bf16")),
    (llama(), dict(optimizer="lion_8bit")), (llama(), dict(optimizer="paged_lion")), (llama(), dict(optimizer="lion")),
    (llama(), dict(optimizer="adafactor", precision="bf16")), (llama(), dict(optimizer="sgd_momentum")),
    (llama(), dict(optimizer="kahan_adamw", precision="bf16")), (llama(), dict(optimizer_in_backward=True)),
    (llama(), dict(optimizer_in_backward=True, precision="bf16-master")), (llama(), dict(zero_grad="in_place")),
    (llama(), dict(zero_grad="before_backward", accumulation=2)), (llama(), dict(step="first")),
    (llama(), dict(step="resumed", optimizer="adafactor", precision="bf16")), (llama(), dict(loss="shifted")),
    (llama(), dict(ADAPTED, loss="chunked")), (llama(), dict(precision="bf16-autocast", loss="fused")),
    (llama(), dict(ADAPTED, loss="fused")), (llama(), dict(ADAPTED, loss="trl", autocast=True)),
    (llama(), dict(logits_to_keep=3)), (GPTConfig.preset("nano"), dict(ADAPTED, lora_dropout=0.1)),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("model", "words"), WORDS, ids=[str(words) for _, words in WORDS])
def test_every_word_on_fake_tensors_is_what_it_is_on_real_ones(model, words):
    plan = TrainingPlan(**{"batch": 2, "seq_len": 48, **words})
    fake, real = (measure(model, plan, device) for device in ("fake", "cpu"))
    assert (fake.ledger, fake.peak, fake.peak_at) == (real.ledger, real.peak, real.peak_at)


def test_no_kernel_runs_for_a_fused_sgd_of_fake_tensors(monkeypatch):
    """torch runs what has no fake kernel on real zeros: 13 GB of them for a 7B model."""
    monkeypatch.setattr(fake_tensor, "run_fallback_kernel", lambda mode, func, *_: pytest.fail(f"{func} ran"))
    plan = TrainingPlan(seq_len=4, optimizer="sgd_momentum", optimizer_loop="fused")
    fake, real = (measure(llama(), plan, device) for device in ("fake", "cpu"))
    assert (fake.ledger, fake.peak) == (real.ledger, real.peak)


@pytest.mark.parametrize("in_backward", [False, True])
def test_bitsandbytes_loads_no_fake_state(in_backward):
    plan = TrainingPlan(seq_len=4, optimizer="lion", step="resumed", optimizer_in_backward=in_backward)
    with pytest.raises(ValueError, match="step is 'resumed'; bitsandbytes' optimizers load from real tensors only"):
        measure(llama(), plan)


@pytest.mark.parametrize(
    ("words", "state"),  # bytes a parameter
    [
        (dict(optimizer="sgd"), 0), (dict(optimizer="sgd_momentum"), 4), (dict(optimizer="lion"), 4),
        (dict(optimizer="sgd_momentum", precision="bf16"), 2), (dict(optimizer="lion", precision="bf16"), 4),
        (dict(optimizer="paged_adamw", precision="bf16"), 8), (dict(optimizer="kahan_adamw", precision="bf16"), 6),
    ],
)  # fmt: skip
def test_bytes_of_the_optimizers_state(words, state):
    step = measure(GROUPED, TrainingPlan(seq_len=16, **words))
    parameters = step.trainable // (2 if "precision" in words else 4)
    assert step.ledger.optimizer == state * parameters


def test_an_optimizer_in_backward_never_has_all_gradients():
    plan = TrainingPlan(seq_len=16, optimizer_in_backward=True)
    gradients = measure(GROUPED, plan).ledger.gradients
    largest = max(p.numel() for p in build(GROUPED, plan).parameters())
    assert 0 < gradients <= 4 * (largest + 128 * 128)  # the largest, and one that autograd holds at the time


def test_a_loss_without_logits_has_no_tensor_of_them():
    logits = 4 * 1024 * 4096 * 4
    plans = {loss: TrainingPlan(**{**LORA, "batch": 4, "seq_len": 1024, "loss": loss}) for loss in ("model", "fused")}
    saved = {loss: measure(WIDE_HEAD, plan).ledger.activations for loss, plan in plans.items()}
    assert saved["model"] - saved["fused"] > 0.9 * logits


@pytest.mark.parametrize(
    ("model", "words", "message"),
    [
        ({"model_type": "no-such"}, {}, "model_type is 'no-such'; transformers .* builds no such model"),
        ({"model_type": "vit"}, {}, "model_type is 'vit'; transformers has no model over a vocabulary for it"),
        ("no-such.json", {}, "cannot read 'no-such.json': no such file"),
        (gpt2(n_positions=16), {}, "seq_len is 32; the model's context is 16, and learned"),
        (
            {**configured("gptj"), "max_position_embeddings": 16, "n_positions": 16},
            {},
            "seq_len is 32; the model's context is 16, and learned",
        ),
        (7, {}, "the model is 7; allowed: a GPTConfig"),
        (llama(), dict(method="qlora", quantization="gptq"), "quantization is 'gptq', which is not measured"),
        (llama(), dict(optimizer_in_backward=True, accumulation=2), "accumulation is 2; with optimizer_in_backward"),
        (llama(), dict(optimizer="adamw8bit", step="resumed"), "step is 'resumed'; bitsandbytes' optimizers load"),
        (configured("bloom"), dict(sequences="packed"), "sequences is 'packed'; this model takes no position_ids"),
        (configured("bart"), dict(sequences="padded"), "device is 'fake'; with sequences 'padded' an encoder"),
        (GPTConfig.preset("nano"), dict(loss="fused"), "loss is 'fused'; allowed with MiniGPT: model, shifted"),
        (llama(), dict(method="lora", modules_to_save="norm"), "modules_to_save is 'norm'; allowed: embedding, head"),
    ],
)
def test_what_cannot_be_measured_is_said(model, words, message):
    with pytest.raises(ValueError, match=message):
        measure(model, TrainingPlan(seq_len=32, **words))


def test_kahan_keeps_what_bfloat16_rounds_away():
    """Twenty steps of lr 1e-3 at a weight of 1 move it as in float32; bfloat16 alone does not move at all."""
    moved = {}
    for name, dtype, make in (
        ("float32", torch.float32, lambda p: torch.optim.AdamW(p, lr=1e-3, eps=1e-6, weight_decay=0.0)),
        ("bfloat16", torch.bfloat16, lambda p: torch.optim.AdamW(p, lr=1e-3, eps=1e-6, weight_decay=0.0)),
        ("kahan", torch.bfloat16, lambda p: KahanAdamW(p, lr=1e-3)),
    ):
        weight = torch.nn.Parameter(torch.ones(4, dtype=dtype))
        optimizer = make([weight])
        for _ in range(20):
            weight.grad = torch.ones_like(weight)
            optimizer.step()
        lost = optimizer.state[weight]["lost"] if name == "kahan" else 0.0
        moved[name] = float((weight.detach().float() + lost)[0]) - 1
    assert moved["bfloat16"] == 0.0
    assert moved["kahan"] == pytest.approx(moved["float32"], rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "itemsize"), [({}, 4), (dict(precision="bf16"), 2), (dict(precision="bf16", autocast=True), 4)]
)
def test_evaluation_gathers_the_logits_of_the_set(words, itemsize):
    plan = TrainingPlan(seq_len=64, **words)
    step, alone = (measure_evaluation(WIDE_HEAD, plan, 20, 4, prediction_loss_only=only) for only in (False, True))
    logits = 64 * 4096 * itemsize
    joined = (16 + 20 + 4) * logits  # the set so far, the set, and the last batch
    assert 0 <= step.peak.total - step.ledger.persistent - joined < 0.01 * joined
    assert alone.peak.total - alone.ledger.persistent < 5 * 4 * 64 * 4096 * 4
    assert step.ledger.gradients == 0 and step.ledger.optimizer > 0


@pytest.mark.slow
def test_evaluation_sends_logits_away_when_asked():
    plan = TrainingPlan(seq_len=64)
    peaks = [
        measure_evaluation(WIDE_HEAD, plan, samples, 4, eval_accumulation_steps=2).peak.total for samples in (8, 16, 80)
    ]
    assert peaks[1] == peaks[2] >= peaks[0]


def test_evaluation_on_fake_tensors_is_that_on_real_ones():
    plan = TrainingPlan(seq_len=32, method="lora", precision="bf16", autocast=True)
    fake, real = (measure_evaluation(llama(), plan, 10, 4, device=device) for device in ("fake", "cpu"))
    assert (fake.ledger, fake.peak) == (real.ledger, real.peak)


def test_a_description_says_that_it_was_measured():
    text = describe(configured("bloom"), TrainingPlan(batch=2, seq_len=32))
    step = measure(configured("bloom"), TrainingPlan(batch=2, seq_len=32))
    assert text.startswith("measured, not predicted: a training step of BloomForCausalLM on fake tensors")
    assert "eager attention: this model has no sdpa" in text and f"peak: {step.peak.total:,} B" in text


@pytest.mark.slow
def test_evaluation_is_the_trainers(tmp_path):
    """transformers' own Trainer.evaluate under the meter, with nothing that the loop above has."""
    from transformers import Trainer, TrainingArguments

    plan = TrainingPlan(seq_len=64, optimizer="sgd")
    module = build(llama(), plan)
    rows = [dict(input_ids=list(range(64)), labels=list(range(64)))] * 20
    options = dict(per_device_eval_batch_size=4, use_cpu=True, report_to=[], disable_tqdm=True)
    trainer = Trainer(module, TrainingArguments(str(tmp_path), **options), compute_metrics=lambda _: {})
    trainer.evaluate(rows)
    with MemoryMeter(module) as meter:
        trainer.evaluate(rows)
    mine = measure_evaluation(llama(), plan, 20, 4, device="cpu")
    assert meter.result().peak.total == pytest.approx(mine.peak.total, abs=20 * 64 * 16)  # the tokens of the set


WITHOUT_VALUES = {
    "plain": (llama(), dict()),
    "accumulated": (llama(), dict(accumulation=2)),
    "float32 gradients": (llama(), dict(precision="bf16-master-grad32")),
    "adapters, checkpointed": (llama(), dict(method="lora", precision="bf16", checkpointing="full")),
    "resumed": (llama(), dict(step="resumed", optimizer="sgd_momentum")),
    "galore": (llama(), dict(optimizer="galore", rank=4)),
    "reentrant": (gpt2(), dict(checkpointing="reentrant", method="lora", precision="bf16")),
}


@pytest.mark.parametrize(("model", "words"), WITHOUT_VALUES.values(), ids=list(WITHOUT_VALUES))
def test_a_fake_first_step_leaves_what_a_whole_one_leaves(monkeypatch, model, words):
    plan = TrainingPlan(**{"batch": 2, "seq_len": 32, "optimizer_loop": "single", **words})
    short = measure(model, plan)
    monkeypatch.setattr(step_module, "only_state_is_left", lambda *args: False)
    whole = measure(model, plan)
    # autocast's casts die in an order of their own
    assert replace(short, events=tuple(sorted(short.events))) == replace(whole, events=tuple(sorted(whole.events)))


def test_a_parameter_without_a_gradient_has_no_state():
    class Half(nn.Module):
        def __init__(self):
            super().__init__()
            self.config = GPTConfig(n_layer=1, n_embd=8, n_head=1, context=8, vocab_size=16)
            self.used, self.idle = nn.Embedding(16, 8), nn.Linear(8, 8)

        def forward(self, input_ids, labels):
            return SimpleNamespace(loss=self.used(input_ids).sum())

    with fake_tensors(plan := TrainingPlan(batch=2, seq_len=4, holds="loss")):
        step = measure_module(make_fake(Half()), plan)
    assert step.ledger.optimizer == 8 * 16 * 8 + 4  # of the embedding alone
