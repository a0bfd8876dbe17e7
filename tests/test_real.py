"""The real stack's runs against predict and this course's own data and loss; the tokenizer against UTF-8 itself."""

from __future__ import annotations

import dataclasses
import importlib.util
import logging
import os
import warnings
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from minigpt import real
from minigpt.data import Example, encode
from minigpt.memory import Architecture, TrainingPlan, predict
from minigpt.memory.measured.apart import Call, run_apart
from minigpt.memory.measured.building import build
from minigpt.memory.measured.step import measure_module

logging.getLogger("bitsandbytes").setLevel(logging.CRITICAL)  # it reports a kernel that only inference would use
with warnings.catch_warnings():  # torch's own, when bitsandbytes makes it load its compiler
    warnings.filterwarnings("ignore", "`torch.jit.script_method` is deprecated", DeprecationWarning)
    import bitsandbytes  # noqa: F401

B, T = 4, 48
QUANTIZATION = dict(
    load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
    bnb_4bit_compute_dtype=torch.bfloat16,
)  # fmt: skip
ADAPTERS = dict(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM")
AS_IT_COMES = dict(
    per_device_train_batch_size=B, max_steps=8, learning_rate=1e-2, optim="paged_adamw_8bit", bf16=True
)  # fmt: skip
TRAINING = AS_IT_COMES | dict(gradient_checkpointing=False)
LOST = dict(  # what a run must not follow
    logging_steps=10, logging_strategy="epoch", report_to="tensorboard", eval_strategy="steps", use_cpu=False, seed=5,
)  # fmt: skip
PAIRS = [Example(f"def f{i}(x):", f"Return x plus {i}.") for i in range(32)]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> str:
    return real.save_tiny_llama(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def tokenizer(tiny):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tiny)


def test_the_tokens_are_the_bytes_of_utf_8(tokenizer):
    text = "".join(map(chr, range(0x250))) + "字 🙂\n\t "
    tokens = tokenizer(text, add_special_tokens=False, split_special_tokens=True).input_ids
    assert tokens == list(text.encode())
    assert tokenizer.decode(tokens) == text
    assert len(tokenizer) == 256 and tokenizer.eos_token_id == tokenizer.pad_token_id == 0


def test_the_tiny_llama_is_the_one_described_and_the_same_each_time(tiny, tmp_path):
    from transformers import AutoModelForCausalLM

    assert Architecture.of(tiny) == Architecture.of(real.TINY)
    state = torch.get_rng_state()
    again = real.save_tiny_llama(tmp_path)
    assert torch.get_rng_state().equal(state)
    one, two = (AutoModelForCausalLM.from_pretrained(path).state_dict() for path in (tiny, again))
    assert all(one[name].equal(two[name]) for name in one)
    assert one["lm_head.weight"].dtype == torch.bfloat16 and one["lm_head.weight"].float().std() > 0.09


def test_rows_are_this_courses_examples(tokenizer):
    pair = Example("def size(text):", "Bytes of its UTF-8: é and Ā have 2.")
    (row,) = real.pair_rows([pair], tokenizer, 64)
    tokens, targets = pair.tokens()  # shifted already
    n = len(tokens)
    assert row["input_ids"][: n + 1] == encode(pair.prompt + pair.answer).tolist() + [0]
    assert row["labels"][1 : n + 1] == targets.tolist()
    assert len(row["input_ids"]) == len(row["labels"]) == 64
    assert set(row["input_ids"][n:]) == {0} and set(row["labels"][n + 1 :]) == {-100}
    assert real.pair_rows([pair], tokenizer, n + 1)
    with pytest.raises(ValueError, match=f"seq_len is {n}, but 'def size.* have {n + 1} tokens"):
        real.pair_rows([pair], tokenizer, n)


def test_a_folder_is_its_own_model(tiny, monkeypatch):
    assert real.fetch(tiny) == real.fetch(Path(tiny)) == tiny
    monkeypatch.chdir(tiny)
    assert real.fetch(".") == tiny


def test_a_missing_folder_is_refused_and_a_hub_out_of_reach_is_another_error(tiny, monkeypatch):
    above = Path(tiny).parent
    monkeypatch.chdir(above.parent)
    for name in (above / "tinny", "./tinny", "~/tinny", "a/b/c", f"{above.name}/tinny"):
        with pytest.raises(ValueError, match="tinny' is no folder|a/b/c' is no folder; give a folder or a name on the"):
            real.fetch(name)
    for name, kind in {"nobody/no-such-model": ConnectionError, "no name at all": ValueError}.items():
        with pytest.raises(kind, match=f"the model '{name}' cannot be fetched from the hub"):
            real.fetch(name)


def test_a_name_that_the_hub_does_not_know_is_refused(monkeypatch):
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError

    for kind, ours in {RepositoryNotFoundError: ValueError, HfHubHTTPError: ConnectionError}.items():
        error = kind.__new__(kind)
        error.args = ("the hub says so",)
        monkeypatch.setattr(HfApi, "model_info", lambda *a, error=error, **k: (_ for _ in ()).throw(error))
        with pytest.raises(ours, match="hub"):
            real.fetch("nobody/no-such-model")


def loaded(path):
    """The model of a run before training, in this process."""
    from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    model = AutoModelForCausalLM.from_pretrained(path, quantization_config=BitsAndBytesConfig(**QUANTIZATION))
    model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
    return get_peft_model(model, LoraConfig(**ADAPTERS)).train()


def test_evaluation_is_cross_entropy_and_leaves_gradients_right(tiny, tokenizer):
    rows = real.pair_rows(PAIRS[:6], tokenizer, T)
    tokens, labels = (torch.tensor([row[key] for row in rows]) for key in ("input_ids", "labels"))
    model = loaded(tiny)

    def gradient():
        model.zero_grad()
        model(input_ids=tokens, labels=labels).loss.backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    before = gradient()
    with torch.no_grad():
        logits = model(input_ids=tokens).logits[:, :-1].flatten(0, 1).double()
    expected = F.cross_entropy(logits, labels[:, 1:].flatten()).item()
    assert real.evaluate(model, rows, batch=4, autocast=False) == pytest.approx(expected, rel=1e-3)
    assert all(map(torch.equal, gradient(), before))


@pytest.mark.filterwarnings("ignore:torch.utils.checkpoint. the use_reentrant parameter")
def test_a_step_after_pefts_preparation_as_it_is_by_default_peaks_as_predicted_with_checkpointing():
    """To the byte in every bucket, and at the loss, as for LLaMA-7B in lesson 09."""
    from peft import prepare_model_for_kbit_training

    config = dict(real.TINY, vocab_size=8192)
    plan = TrainingPlan(batch=2, seq_len=128, method="qlora", precision="bf16", optimizer_loop="single")
    model = build(config, plan)
    prepare_model_for_kbit_training(model.get_base_model())
    for name, parameter in model.named_parameters():  # the preparation has frozen the adapters, too
        parameter.requires_grad = "lora_" in name
    expected = predict(config, dataclasses.replace(plan, checkpointing="reentrant"))
    assert expected.peak.total < 0.8 * predict(config, plan).peak.total
    measured = measure_module(model, plan)
    assert (measured.peak.total, measured.ledger.activations) == (expected.peak.total, expected.ledger.activations)


@pytest.mark.filterwarnings("ignore:torch.utils.checkpoint. the use_reentrant parameter")
def test_trainer_leaves_the_checkpointing_of_pefts_preparation_on(tiny, tokenizer, tmp_path):
    from peft import LoraConfig, prepare_model_for_kbit_training
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig, Trainer, TrainingArguments

    model = AutoModelForCausalLM.from_pretrained(tiny, quantization_config=BitsAndBytesConfig(**QUANTIZATION))
    assert not model.is_gradient_checkpointing
    model = prepare_model_for_kbit_training(model)
    model.add_adapter(LoraConfig(**ADAPTERS))
    arguments = TrainingArguments(tmp_path, max_steps=1, use_cpu=True, report_to="none", save_strategy="no")
    Trainer(model, arguments, train_dataset=real.pair_rows(PAIRS[:8], tokenizer, T)).train()
    assert not arguments.gradient_checkpointing and model.is_gradient_checkpointing


def test_fewer_than_two_steps_are_refused(tiny):
    with pytest.raises(ValueError, match="max_steps is 1; the meter needs at least 2"):
        real.fine_tune(path=tiny, quantization={}, adapters={}, training={"max_steps": 1}, rows=[], held_out=[])


@pytest.fixture(scope="module")
def runs(tiny, tokenizer) -> dict:
    """Each kind of run, in a process of its own."""
    rows, held_out = (real.pair_rows(pairs, tokenizer, T) for pairs in (PAIRS[:24], PAIRS[24:]))
    given = dict(path=tiny, quantization=QUANTIZATION, adapters=ADAPTERS, rows=rows, held_out=held_out)
    kinds = {
        "plain": dict(training=TRAINING | LOST, eval_every=3),
        "accumulated": dict(training=TRAINING | dict(per_device_train_batch_size=2, gradient_accumulation_steps=2)),
        "checkpointed": dict(training=TRAINING | dict(gradient_checkpointing=True)),
        "as it comes": dict(training=AS_IT_COMES),
    }
    if importlib.util.find_spec("unsloth"):
        kinds["unsloth"] = dict(training=TRAINING, unsloth=True)
    calls = {name: Call("minigpt.real:fine_tune", given | more) for name, more in kinds.items()}
    return run_apart(calls, at_once=min(2, os.cpu_count()))


PLANS = {
    "plain": dict(batch=B),
    "accumulated": dict(batch=B // 2, accumulation=2),
    "checkpointed": dict(batch=B, checkpointing="full"),
    "as it comes": dict(batch=B, checkpointing="reentrant"),  # what peft's preparation turns on
}


@pytest.mark.parametrize("kind", PLANS)
def test_a_step_of_trainer_is_the_predicted_one(runs, kind):
    """To the byte in what stays; activations but for Trainer's own numbers, such as its count of target tokens."""
    plan = TrainingPlan(seq_len=T, method="qlora", precision="bf16-autocast", optimizer="adamw8bit", **PLANS[kind])
    ours, theirs = predict(real.TINY, plan), runs[kind]["memory"]
    for bucket in ("weights", "gradients", "optimizer"):
        assert getattr(theirs.ledger, bucket) == getattr(ours.ledger, bucket), bucket
    assert theirs.frozen == ours.frozen
    assert 0 <= theirs.ledger.activations - ours.ledger.activations <= 16
    assert theirs.peak.total == pytest.approx(ours.peak.total, rel=0.005)
    assert {phase for phase, _, _ in theirs.events} == {"before", "forward", "backward"}  # the update is one kernel


def test_every_run_learns_and_says_what_became_of_the_options(runs):
    for name, run in runs.items():
        (first, before), *between, (last, after) = run["validation"]
        assert (first, [step for step, _ in between], last) == (0, [3, 6] if name == "plain" else [], 8)
        assert after < before - 0.5, name
        assert len(run["losses"]) == 8 and run["losses"][-1] < run["losses"][0]
        assert run["memory"].card is None
        if name != "unsloth":
            assert run["optimizer"] == "paged_adamw_8bit"
            assert run["dtypes"] == {"adapters": "float32", "rest": "float32"}
            assert any("Paged optimizers are not supported on CPU" in line for line in run["said"])
    for name in ("accumulated", "checkpointed"):  # the same batches and starts
        assert runs[name]["losses"] == pytest.approx(runs["plain"]["losses"], rel=0.02)


def test_unsloth_keeps_the_rest_and_the_adapters_in_16_bits(runs):
    if "unsloth" not in runs:
        pytest.skip("unsloth is not installed")
    plan = TrainingPlan(
        batch=B, seq_len=T, method="qlora", precision="bf16", kbit_preparation=False, adapter_dtype="same",
        optimizer_loop="fused",
    )  # fmt: skip
    ours, run = predict(real.TINY, plan), runs["unsloth"]
    for bucket in ("weights", "gradients", "optimizer"):
        assert getattr(run["memory"].ledger, bucket) == getattr(ours.ledger, bucket), bucket
    assert run["memory"].ledger.activations < ours.ledger.activations  # its loss keeps no log-probabilities
    assert run["dtypes"] == {"adapters": "bfloat16", "rest": "bfloat16"}
    assert run["optimizer"] == "adamw_torch_fused"  # on a CPU it replaces the one that was asked for
    assert run["losses"][0] == pytest.approx(runs["plain"]["losses"][0], rel=1e-3)


@pytest.mark.slow
def test_the_arithmetic_of_lab_09s_check_is_the_meters():
    from minigpt.checks.qlora import stays

    config = dict(real.TINY, hidden_size=128, intermediate_size=320, num_attention_heads=4, num_key_value_heads=1,
                  head_dim=64, num_hidden_layers=2)  # fmt: skip
    matrices, others = stays.parts(config)
    for rank in (16, 3):
        assert stays.metered(config, rank) == stays.stays(matrices, others, rank)
