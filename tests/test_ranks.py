"""Ranks that share a training make the updates of one process, and each holds what its stage says, to the byte.

For two ranks the sum of two gradients has one order, so all weights are equal to the last bit. For three, gloo adds in
another order than autograd, and 1 / 3 is rounded: sums of weights agree to 1e-5.

In the peaks' formulas P is a block's bytes, R those of what is in no block, E the head's gradient; P3 and R3 are with
the padding of three ranks. What is left, the activations at that instant, must not depend on how many ranks there are.
"""

import pytest

from minigpt.memory.measured import ranks as ranks_module
from minigpt.memory.measured.apart import Call
from minigpt.memory.measured.ranks import measure_many_ranks, measure_ranks
from minigpt.memory.measured.together import run_ranks
from minigpt.memory.plan import TrainingPlan
from minigpt.model import GPT, GPTConfig
from minigpt.sharding import kinds
from minigpt.sharding.run import run_alone
from tests.ranked import CONFIG, STEPS, Batches, told

RUNS = (*kinds.KINDS, "bucket view", "kept", "ZeroRedundancyOptimizer")

L, C, V, S, T = 4, 64, 64, 16, 8
MODEL = GPTConfig(n_layer=L, n_embd=C, n_head=4, context=S, vocab_size=V)
P, R, E = 4 * (12 * C * C + 2 * C), 4 * ((V + S) * C + C), 4 * V * C
M, TENSORS, LARGEST = L * P + R, 8 * L + 3, 4 * 4 * C * C
GIVEN = 2 * 8 * T + 4  # tokens, targets, the loss


def plan(sharding: str, ranks: int = 2, **words) -> TrainingPlan:
    return TrainingPlan(sharding=sharding, ranks=ranks, seq_len=T, optimizer_loop="single", **words)


CASES = {
    "fsdp2": plan("fsdp2"),
    "again": plan("fsdp2"),
    "of 3": plan("fsdp2", 3),
    "kept": plan("fsdp2", reshard_after_forward=False),
    "kept by 3": plan("fsdp2", 3, reshard_after_forward=False),
    "bf16": plan("fsdp2", param_dtype="bf16"),
    "bf16, summed in fp32": plan("fsdp2", param_dtype="bf16", reduce_dtype="fp32"),
    "offload": plan("fsdp2", shard_offload="parameters"),
    "accumulated": plan("fsdp2", accumulation=2),
    "lora": plan("fsdp2", method="lora", rank=4, targets="q,v"),
    "qlora": plan("fsdp2", method="qlora", rank=4, targets="q,v"),
    "ddp": plan("ddp"),
    "ddp in buckets": plan("ddp", gradient_as_bucket_view=True),
    "zero1": plan("zero1"),
    "zero2": plan("zero2"),
    "zero3": plan("zero3"),
    "adafactor": plan("zero1", optimizer="adafactor"),
}


@pytest.fixture(scope="module")
def of_ranks():
    cases = [(MODEL, case) for case in CASES.values()]
    return run_ranks(Call("tests.ranked:everything", {"groups": [2, 3], "cases": cases}), 3)


@pytest.fixture
def measured(of_ranks, monkeypatch):
    monkeypatch.setattr(ranks_module, "run_ranks", lambda *args, **options: [found["measured"] for found in of_ranks])
    return measure_many_ranks({name: (MODEL, case) for name, case in CASES.items()})


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3])
def test_every_sharding_makes_the_updates_of_one_process(of_ranks, ranks):
    alone = told(run_alone(CONFIG, Batches(), STEPS, ranks))
    found = [told["trained"][str(ranks)] for told in of_ranks[:ranks]]
    for kind in RUNS:
        for of_rank in found:
            assert of_rank[kind]["digest"] == found[0][kind]["digest"], kind  # the ranks agree to the last bit
            assert of_rank[kind]["losses"] == pytest.approx(alone["losses"], rel=1e-6), kind
            assert of_rank[kind]["sums"] == pytest.approx(alone["sums"], rel=1e-5, abs=1e-5), kind
            if ranks == 2:
                assert of_rank[kind]["digest"] == alone["digest"], kind


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3])
def test_a_rank_holds_what_its_stage_says(of_ranks, ranks):
    parameters = list(GPT(CONFIG).parameters())
    whole, tensors = 4 * sum(p.numel() for p in parameters), len(parameters)
    block, rest = 12 * 20 * 20 + 2 * 20, (31 + 9) * 20 + 20  # numbers in a block and in what is in no block
    flat = sum(4 * -(-n // ranks) for n in (block, block, block, rest))  # a rank's shards of the four groups
    rows = sum(4 * -(-p.shape[0] // ranks) * p[0].numel() for p in parameters)  # and fully_shard's
    expected = {
        "zero1": (ranks * flat, whole, 2 * flat + 4 * 4),
        "zero2": (ranks * flat, flat, 2 * flat + 4 * 4),
        "zero3": (flat, flat, 2 * flat + 4 * 4),
        "fsdp2": (rows, rows, None),  # padding has no state
        "kept": (rows, rows, None),
        "ZeroRedundancyOptimizer": (whole, whole, None),  # it deals out whole tensors
    }
    for kind in RUNS:
        held = [told["trained"][str(ranks)][kind]["held"] for told in of_ranks[:ranks]]
        weights, gradients, state = expected.get(kind, (whole, whole, 2 * whole + 4 * tensors))
        assert all((part["weights"], part["gradients"]) == (weights, gradients) for part in held), kind
        if state is not None:
            assert all(part["optimizer"] == state for part in held), kind
        else:  # all of it once, and the counts of steps: of each tensor, or of each part of it
            counts = tensors if kind == "ZeroRedundancyOptimizer" else tensors * ranks
            assert sum(part["optimizer"] for part in held) == 2 * whole + 4 * counts, kind


def at_peak(memory) -> int:
    """Bytes at the peak beside weights and state."""
    return memory.peak.total - memory.peak.weights - memory.peak.optimizer


@pytest.mark.slow
def test_the_ledger_of_each_rank(measured):
    assert str(measured.pop("adafactor")).startswith("optimizer is 'adafactor'; measured with sharding 'zero1'")
    for name, ranks in measured.items():
        assert len(ranks) == CASES[name].ranks
        if CASES[name].ranks == 2:  # all is even
            assert ranks[0] == ranks[1], name
        for memory in ranks:
            assert memory.timeline()[0][1].persistent <= memory.ledger.persistent
    first = {name: ranks[0] for name, ranks in measured.items()}
    keeps = {name: (m.ledger.weights, m.ledger.gradients, m.ledger.optimizer) for name, m in first.items()}
    sharded, state = (M // 2, M // 2), 2 * M // 2 + 4 * TENSORS
    for name in ("fsdp2", "kept", "bf16", "bf16, summed in fp32", "offload", "accumulated"):
        assert keeps[name] == (*sharded, state), name
    assert keeps["ddp"] == (M, M, 2 * M + 4 * TENSORS)
    assert keeps["ddp in buckets"] == (M, M + LARGEST, 2 * M + 4 * TENSORS)  # one whose copy is not in the bucket yet
    assert keeps["zero1"] == (M, M, M + 4 * 5)
    most = P + (L - 1) * P // 2 + 4 * C  # the first block's and the last norm's own, beside the others' shards
    assert keeps["zero2"] == (M, most, M + 4 * 5)
    assert keeps["zero3"] == (*sharded, M + 4 * 5)
    adapters = L * 2 * 4 * (2 * C) * 4
    assert keeps["lora"] == ((M + adapters) // 2, adapters // 2, adapters + 4 * 2 * 2 * L)


@pytest.mark.slow
def test_the_peak_of_each_rank(measured):
    first = {name: ranks[0] for name, ranks in measured.items() if isinstance(ranks, list)}
    assert first["fsdp2"] == first["again"]  # every event of it
    assert first["offload"].peak == first["fsdp2"].peak  # on a machine without a card the host is where all lies

    rows = -(-C // 3), -(-4 * C // 3), -(-V // 3), -(-S // 3)
    P3 = 4 * 3 * (5 * rows[0] * C + rows[1] * C + 2 * rows[0])  # one of the five is down_proj, four times as wide
    P3 += 4 * 3 * 3 * rows[0] * C
    R3 = 4 * 3 * ((rows[2] + rows[3]) * C + rows[0])
    act = at_peak(first["fsdp2"]) - (4 * P + (L - 2) * P // 2 + R + E)
    assert act == at_peak(first["of 3"]) - (3 * P3 + P + (L - 2) * P3 // 3 + R3 + E) > 0
    act = at_peak(first["kept"]) - ((L + 2) * P + R)
    assert act == at_peak(first["kept by 3"]) - ((L + 2) * P3 + R3) > 0
    half = at_peak(first["bf16"]) - (4 * P // 2 + (L - 2) * P // 2 + (R + E) // 2)
    assert half == at_peak(first["bf16, summed in fp32"]) - (3 * P // 2 + P + (L - 2) * P // 2 + (R + E) // 2) > 0

    buckets, update = M, 3 * LARGEST
    assert at_peak(first["ddp"]) == M + buckets + update + GIVEN
    assert at_peak(first["zero1"]) == M + P + GIVEN  # the first block's gradients, in one tensor, to be scattered
    assert first["zero2"].peak_at == first["zero3"].peak_at == "backward, aten.cat.default"
    assert at_peak(first["zero3"]) - at_peak(first["zero2"]) == P + R  # one block's weights and the rest's, gathered


def test_one_process_is_no_case_for_ranks():
    with pytest.raises(ValueError, match="sharding is 'none' in 'it'"):
        measure_ranks(MODEL, TrainingPlan())
