"""What a rank holds and sends, predicted: against torch.chunk, recorded peaks, and ranks that really run."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch

from minigpt.memory import BUCKETS, TrainingPlan, predict, predict_evaluation, predict_static
from minigpt.memory.explain import explain
from minigpt.memory.fits import fits
from minigpt.memory.measured.apart import Call
from minigpt.memory.measured.together import run_ranks
from minigpt.memory.predicted.reserved import reserve
from minigpt.memory.predicted.sharded import communication, rank
from minigpt.memory.predicted.sharded.ddp import FIRST, OTHERS, buckets
from minigpt.memory.predicted.sharded.shards import most_rows, padded, rows_of
from minigpt.model import GPTConfig
from tools.models import MODELS, llama

FSDP = TrainingPlan(batch=1, seq_len=8, sharding="fsdp2", ranks=2)
UNEVEN = MODELS["minigpt-uneven"]
PADDED = GPTConfig(n_layer=2, n_embd=33, n_head=1, context=9, vocab_size=31)  # no side divides by 2; its blocks peak
RUN = {  # MiniGPT alone, because transformers takes its time to import in each process
    "fsdp2, first": (UNEVEN, replace(FSDP, step="first")),  # before others: DTensor keeps what it has found of shapes
    "ddp": (UNEVEN, replace(FSDP, sharding="ddp", gradient_as_bucket_view=True, accumulation=2)),
    "ddp, qlora": (UNEVEN, replace(FSDP, sharding="ddp", method="qlora", precision="bf16")),
    "zero1": (UNEVEN, replace(FSDP, sharding="zero1", precision="bf16")),
    "zero2": (UNEVEN, replace(FSDP, sharding="zero2", accumulation=2)),
    "zero3": (UNEVEN, replace(FSDP, sharding="zero3")),
    "fsdp2": (UNEVEN, replace(FSDP, accumulation=2, reshard_after_forward=False)),
    "fsdp2, padded": (PADDED, replace(FSDP, accumulation=2)),
    "fsdp2, padded, bf16": (PADDED, replace(FSDP, accumulation=2, param_dtype="bf16")),  # peaks as it reduces
    "fsdp2, bf16": (UNEVEN, replace(FSDP, param_dtype="bf16", reduce_dtype="fp32", checkpointing="full")),
    "fsdp2, lora": (UNEVEN, replace(FSDP, method="lora", precision="bf16")),
}


@pytest.fixture(scope="module")
def ran() -> dict:
    """(StepMemory, bytes by collective) of both ranks, by the case's name."""
    by_rank = run_ranks(Call("tests.sent:metered_and_counted", {"cases": list(RUN.values())}), 2)
    return dict(zip(RUN, zip(*by_rank), strict=True))


@pytest.mark.parametrize("name", RUN)
def test_a_rank_holds_what_its_meter_saw(ran, name):
    model, plan = RUN[name]
    for number, (measured, _) in enumerate(ran[name]):
        predicted = rank(model, plan, number)
        assert predicted.peak.total == measured.peak.total
        for bucket in BUCKETS[:-1]:
            assert getattr(predicted.ledger, bucket) == getattr(measured.ledger, bucket), bucket
        assert predicted.frozen == measured.frozen


@pytest.mark.parametrize("name", RUN)
def test_a_rank_sends_what_was_passed_to_torch(ran, name):
    sent = {f"{one.collective}, {one.phase}": one.nbytes for one in communication(*RUN[name])}
    assert all(passed == sent for _, passed in ran[name])


@pytest.mark.parametrize("shape", [(5, 3), (8,), (3, 2, 2), (1, 7), (257, 36)])
@pytest.mark.parametrize("ranks", [2, 4, 6])
def test_rows_are_dealt_out_as_torch_does(shape, ranks):
    chunks = torch.chunk(torch.empty(shape), ranks)
    rows = [len(chunk) for chunk in chunks] + [0] * (ranks - len(chunks))
    assert [rows_of(shape, ranks, i) for i in range(ranks)] == rows
    assert padded(shape, ranks) == ranks * most_rows(shape, ranks) * torch.empty(shape[1:]).numel()
    assert most_rows(shape, ranks) == rows[0]


@pytest.mark.parametrize(
    ("layers", "words", "seen"),
    [  # recorded on gloo, T=8: above weights and optimizer, from no gradients; targets were the tokens themselves
        (4, dict(ranks=2), 16_510_408),
        (8, dict(ranks=4), 18_084_296),
        (12, dict(ranks=4), 21_232_072),
        (4, dict(ranks=4, reshard_after_forward=False), 19_617_664),
        (8, dict(ranks=2, reshard_after_forward=False), 32_734_080),
        (4, dict(ranks=4, param_dtype="bf16"), 8_255_336),
    ],
)
def test_recorded_peaks_come_out(layers, words, seen):
    model = GPTConfig(n_layer=layers, n_embd=256, n_head=4, vocab_size=256, context=64)
    step = predict(model, replace(FSDP, **words))
    tokens = 8 * 8
    assert step.peak.total - step.ledger.weights - step.ledger.optimizer - tokens == seen


def test_no_rank_alone_differs_from_one_process():
    alone = replace(FSDP, sharding="none", ranks=1)
    assert communication(UNEVEN, alone) == ()
    for sharding in ("zero1", "zero2"):  # weights whole, as in one process but for padding
        held, whole = predict(UNEVEN, replace(FSDP, sharding=sharding)).ledger, predict(UNEVEN, alone).ledger
        assert 0 <= held.weights - whole.weights < 4 * 2 * 4 and held.activations == whole.activations


def test_all_that_a_rank_sends_is_told():
    sent = {one.collective + " " + one.phase: one for one in communication(llama(), replace(FSDP, ranks=4))}
    assert sent["all-gather forward"].calls == 4 and sent["all-gather backward"].calls == 3  # the root's stays
    reduced = sent["reduce-scatter backward"]
    assert reduced.sent == 3 * reduced.nbytes // 4
    first, all_reduced = communication(llama(), replace(FSDP, sharding="ddp"))
    assert all_reduced.sent == all_reduced.nbytes and (first.collective, first.sent) == ("broadcast", first.nbytes)


def test_buckets_are_1_mib_and_then_25():
    from minigpt.memory.engine.tape import Tape

    values = [Tape().new((256, 1024), "float32") for _ in range(60)]  # 1 MiB each
    sizes = [sum(value.nbytes for value in bucket) for bucket in buckets(values)]
    assert sizes == [FIRST, OTHERS, OTHERS, 9 * 1024**2] and buckets(values)[0][0] is values[-1]


def test_what_is_alive_adds_up_and_has_names():
    alive = explain(llama(), FSDP)
    assert sum(one.nbytes for one in alive) == predict(llama(), FSDP).peak.total
    assert any(one.name.endswith(", gathered") and one.bucket == "temporary" for one in alive)


def test_a_card_holds_less_the_more_ranks_there_are():
    plan = replace(FSDP, seq_len=64, card="T4", ranks=2)
    two, eight, away = (
        reserve("gpt2", replace(plan, **words)) for words in ({}, dict(ranks=8), dict(shard_offload="parameters"))
    )
    assert eight.allocated < two.allocated and eight.loaded < two.loaded and away.loaded < 2**21
    shards = predict("gpt2", replace(plan, card=None)).ledger
    assert two.allocated - away.allocated > 0.8 * (shards.weights + shards.optimizer)
    verdict = fits("gpt2", plan)
    assert verdict.fits and not verdict.sure and "2 ranks on a T4 of its own" in verdict.warnings[-1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (dict(optimizer="adamw8bit"), "optimizer is 'adamw8bit'; predicted with sharding 'fsdp2': adamw, sgd"),
        (dict(sharding="zero1", optimizer="lion"), "optimizer is 'lion'; predicted with sharding 'zero1'"),
        (dict(sharding="ddp", optimizer="galore"), "optimizer is 'galore'; predicted with sharding 'ddp'"),
        (dict(precision="bf16-master"), "precision is 'bf16-master'; predicted with sharding 'fsdp2'"),
        (dict(checkpointing="reentrant"), "checkpointing is 'reentrant'; predicted with sharding 'fsdp2'"),
        (dict(step="resumed"), "step is 'resumed'; predicted with sharding"),
        (dict(zero_grad="in_place"), "zero_grad is 'in_place'; predicted with sharding"),
        (dict(optimizer_in_backward=True), "optimizer_in_backward is True; predicted with sharding"),
        (dict(loss="fused"), "loss is 'fused'; predicted with sharding"),
        (dict(param_dtype="bf16", method="lora"), "method is 'lora'; predicted with sharding 'fsdp2': full"),
        (dict(sharding="zero1", shard_offload="optimizer"), "shard_offload is 'optimizer'; predicted with"),
        (dict(sharding="zero3", method="lora"), "method is 'lora'; with sharding 'zero3' every weight must be trained"),
    ],
    ids=str,
)
def test_what_is_not_followed_is_refused(words, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        predict(llama(), replace(FSDP, **words))


def test_other_questions_name_the_field():
    with pytest.raises(ValueError, match="rank is 2; of 2 ranks allowed: 0 to 1"):
        rank(UNEVEN, FSDP, 2)
    for wrong in (None, "0", 1.0, True, []):
        with pytest.raises(ValueError, match="rank is .*; of 2 ranks allowed: 0 to 1"):
            rank(UNEVEN, FSDP, wrong)
    with pytest.raises(ValueError, match="sharding is 'zero3'; a bloom's blocks return more than a tensor"):
        predict(MODELS["bloom"], replace(FSDP, sharding="zero3"))
    two = replace(FSDP, method="qlora", precision="bf16", adapter_dtype="same", variant="dora")  # as trl leaves lengths
    with pytest.raises(ValueError, match="adapter_dtype is 'same'; block 0 trains bfloat16 and float32"):
        predict(llama(), two)
    with pytest.raises(ValueError, match="sharding is 'fsdp2'; what stays on a rank"):
        predict_static(llama(), FSDP)
    with pytest.raises(ValueError, match="sharding is 'fsdp2'; an evaluation"):
        predict_evaluation(llama(), FSDP, 8)
