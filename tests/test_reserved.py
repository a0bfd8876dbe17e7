"""A training from its loading on: against transformers, bitsandbytes and peft, watched, and against predict's step."""

from __future__ import annotations

import weakref

import pytest
import torch

from minigpt.memory import Architecture, TrainingPlan, predict
from minigpt.memory.collector import at_rest
from minigpt.memory.engine.graph import BORN, DEAD
from minigpt.memory.engine.tape import Tape
from minigpt.memory.fits import MARGIN, fits
from minigpt.memory.gpus import GPUS
from minigpt.memory.predicted import loading
from minigpt.memory.predicted.cuda import LT_WORKSPACE
from minigpt.memory.predicted.reserved import counted, history, reserve
from minigpt.memory.units import MIB
from tools.models import MODELS

FOUR_BITS = TrainingPlan(method="qlora", precision="fp16", batch=2, seq_len=32, card="T4")
LOADED = [
    name
    for name, model in MODELS.items()
    if isinstance(model, dict) and loading.loads_in_pieces(Architecture.of(model), FOUR_BITS)
]
PLANS = {
    "full": dict(),
    "scores, outputs held": dict(attention="eager", holds="outputs"),
    "16 bits": dict(precision="bf16"),
    "autocast": dict(precision="fp16-autocast"),
    "master copies": dict(precision="bf16-master"),
    "first": dict(step="first"),
    "resumed": dict(step="resumed"),
    "three passes": dict(accumulation=3, zero_grad="before_backward"),
    "gradients stay": dict(zero_grad="in_place", optimizer="sgd_momentum"),
    "in backward": dict(optimizer_in_backward=True, optimizer_loop="single"),
    "checkpointed": dict(checkpointing="full", optimizer="adamw8bit"),
    "adapters": dict(method="lora", precision="bf16", checkpointing="full"),
    "four bits": dict(method="qlora", precision="fp16"),
    "four bits, one scale": dict(method="qlora", precision="bf16", double_quantization=False, step="resumed"),
    "the first of four bits": dict(method="qlora", precision="bf16", step="first", checkpointing="reentrant"),
}
QUICK = ("minigpt", "llama-biased", "gemma2", "mixtral", "gpt2")


def theirs(name: str):
    """transformers' model, without numbers."""
    transformers = pytest.importorskip("transformers")
    with torch.device("meta"):
        return transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**MODELS[name]))


@at_rest()
def loaded(name: str, **changes) -> Tape:
    tape, plan = Tape(cuda=True), TrainingPlan(method="qlora", precision="fp16", card="T4", **changes)
    tape.kept = loading.load(tape, Architecture.of(MODELS[name]), plan)
    return tape


def test_most_families_are_loaded_here():
    families = {MODELS[name]["model_type"] for name in LOADED}
    assert families == {"llama", "mistral", "qwen2", "qwen3", "phi3", "phi", "gemma", "gemma2", "gemma3_text",
                        "granite", "smollm3", "olmo2", "starcoder2"}  # fmt: skip


@pytest.mark.parametrize("name", LOADED)
def test_tensors_are_loaded_in_transformers_order(name):
    """By transformers' own key, over the names of its own model, each of which has its size."""
    loader = pytest.importorskip("transformers.core_model_loading")
    model, architecture = theirs(name), Architecture.of(MODELS[name])
    there = {k: tuple(v.shape) for k, v in model.state_dict().items() if k not in model.all_tied_weights_keys}
    ours = [(loading.there(architecture, t.name), t.shape) for t in loading.in_order(architecture)]
    assert ours == [(key, there[key]) for key in sorted(there, key=loader.dot_natural_key)]


@pytest.mark.parametrize("name", LOADED)
def test_a_tensor_is_there_in_16_bits_until_it_is_quantized(name, tmp_path, monkeypatch):
    """from_pretrained(load_in_4bit=True) on the CPU, watched: what the warm-up would ask a card for, what is made, what
    is quantized, what goes."""
    transformers = pytest.importorskip("transformers")
    functional = pytest.importorskip("bitsandbytes.functional")
    from transformers import core_model_loading as loader
    from transformers import modeling_utils

    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**MODELS[name]))
    model.to(torch.float16).save_pretrained(tmp_path)
    seen: list[tuple[str, int]] = []
    copy, quantize, count = loader._materialize_copy, functional.quantize_4bit, modeling_utils.get_total_byte_count

    def warm_up(*given):
        seen.extend(("made", nbytes) for nbytes in count(*given).values())
        seen.append(("dead", seen[0][1]))

    def materialize(*given, **named):
        tensor = copy(*given, **named)
        seen.append(("made", tensor.nbytes))
        weakref.finalize(tensor.untyped_storage(), seen.append, ("dead", tensor.nbytes))
        return tensor

    def quantized(*given, **named):
        out = quantize(*given, **named)
        seen.append(("made", out[0].nbytes))
        return out

    monkeypatch.setattr(modeling_utils, "caching_allocator_warmup", warm_up)
    monkeypatch.setattr(loader, "_materialize_copy", materialize)
    monkeypatch.setattr(functional, "quantize_4bit", quantized)
    bits = transformers.BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")
    kept = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, quantization_config=bits, dtype=torch.float16)
    found, tape = list(seen), loaded(name, double_quantization=False, kbit_preparation=False)
    whole = [(kind, r) for _, r, kind in tape.events if r.dtype or r.bucket is None]  # neither scales nor tables
    assert [("made" if kind == BORN else "dead", record.nbytes) for kind, record in whole] == found[: len(whole)]
    tied = MODELS[name]["model_type"] == "phi" and MODELS[name].get("tie_word_embeddings")
    assert found[len(whole) :] == ([("dead", 2 * 512)] if tied else [])  # tie_weights pads the head's bias: another one
    del kept


@pytest.mark.parametrize("double", [False, True])
def test_what_stays_of_a_quantized_tensor_is_bitsandbytes_state(double):
    functional = pytest.importorskip("bitsandbytes.functional")
    tape = loaded("llama-grouped", double_quantization=double)
    codes, state = functional.quantize_4bit(torch.randn(176, 64), quant_type="nf4", compress_statistics=double)
    kept = [codes, state.absmax, state.code]
    kept += [state.state2.absmax, state.state2.code, state.offset] if double else []
    stays = [storage.record.nbytes for storage in tape.kept["blocks.0.up"]]
    assert sorted(stays) == sorted(x.nbytes for x in kept)


def test_peft_empties_the_cache_when_all_is_float32(monkeypatch):
    peft = pytest.importorskip("peft")
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.for_model(**MODELS["llama-grouped"])
    model, found = transformers.AutoModelForCausalLM.from_config(config).to(torch.float16), []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: found.append({p.dtype for p in model.parameters()}))
    model.is_loaded_in_4bit = True
    peft.prepare_model_for_kbit_training(model)
    assert found == [{torch.float32}]
    tape = loaded("llama-grouped")
    assert tape.emptied == [len(tape.events)]
    assert loaded("llama-grouped", kbit_preparation=False).emptied == []


# ------------------------------------------------------------ the steps


CASES = [pytest.param(name, kind, marks=[] if name in QUICK else pytest.mark.slow) for name in MODELS for kind in PLANS]


def peaks(told, size=lambda nbytes: nbytes) -> int:
    """The most that is alive in the last step, where a request takes ``size(nbytes)``."""
    live = most = 0
    for count, (_, record, kind) in enumerate(told.tape.events):
        if kind in (BORN, DEAD):
            live += size(record.nbytes) if kind == BORN else -size(record.nbytes)
        most = max(most, live) if count >= told.parts[-1] else most
    return most


def block(nbytes: int) -> int:
    """The largest block that a request may get: multiples of 512 bytes, and of a large one up to 1 MiB unsplit."""
    return -(-nbytes // 512) * 512 + (MIB if nbytes > MIB else 0)


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_the_last_step_has_the_peak_that_predict_finds(name, kind):
    """To the byte, but for cuBLASLt's workspace: a step has it from where a block with biases runs again, and later
    ones from the first on."""
    plan = TrainingPlan(batch=2, seq_len=32, card="T4", **PLANS[kind])
    try:
        step = predict(MODELS[name], plan, history=False)
    except ValueError as refused:
        with pytest.raises(ValueError, match=str(refused)[:20]):
            reserve(MODELS[name], plan)
        return
    told = history(MODELS[name], plan)
    most, found = peaks(told), counted(told)
    assert found == reserve(MODELS[name], plan) and not found.failed
    assert len(told.parts) == (2 if plan.step == "first" else 3)
    assert 0 <= most - step.peak.total <= (LT_WORKSPACE if plan.checkpointing != "none" else 0)
    assert most <= found.allocated <= peaks(told, block)
    assert 0 < found.loaded <= found.reserved and found.allocated <= found.reserved


@pytest.mark.parametrize("kind", ["full", "three passes", "adapters", "four bits"])
def test_more_steps_reserve_no_less_and_little_more(kind):
    plan = TrainingPlan(batch=2, seq_len=128, card="T4", **PLANS[kind])
    model = dict(MODELS["llama-grouped"], hidden_size=256, intermediate_size=704, vocab_size=8000, head_dim=64)
    few, many = (counted(history(model, plan, steps)) for steps in (2, 6))
    assert few.reserved <= many.reserved <= 1.02 * few.reserved
    assert few.loaded == many.loaded and few.allocated == many.allocated


def test_a_card_that_is_too_small_fails_in_torch_s_words():
    told = history("gpt2", TrainingPlan(batch=4, seq_len=256, card="T4"))
    free = counted(told)
    failed = counted(told, free.allocated // 2)
    assert failed.failed.startswith("CUDA out of memory. Tried to allocate ")
    assert failed.reserved <= free.allocated // 2 < free.reserved
    assert counted(told, free.reserved) == free


def test_where_the_peaks_are_is_said():
    found = reserve("gpt2", TrainingPlan(batch=4, seq_len=256, card="T4"))
    assert found.allocated_at == found.reserved_at == "backward, head: log_softmax"


def test_without_a_card_nothing_is_reserved():
    with pytest.raises(ValueError, match="card is None; what is reserved depends on it"):
        history("gpt2", TrainingPlan())


def test_a_verdict_within_the_margin_is_not_sure():
    """Of a card on which the same step leaves more than the margin, and one on which it leaves less."""
    plan = TrainingPlan(batch=4, seq_len=256, card="T4", checkpointing="full")
    verdict = fits("gpt2", plan)
    assert verdict.fits and verdict.sure and verdict.needs * (1 + MARGIN) < GPUS["T4"].room
    for batch in (verdict.largest_batch, verdict.largest_batch + 1):
        tight = fits("gpt2", TrainingPlan(batch=batch, seq_len=256, card="T4", checkpointing="full"))
        assert tight.sure == (tight.needs * (1 + MARGIN) <= tight.room if tight.fits else False)
