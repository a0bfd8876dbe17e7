"""What is alive at the peak: the list adds up to the prediction, and holds what torch's own tensors are."""

from __future__ import annotations

import json

import pytest

from minigpt.memory import BUCKETS, TrainingPlan, predict
from minigpt.memory.__main__ import main
from minigpt.memory.explain import explain, table
from minigpt.memory.units import MIB
from tools.models import MODELS

PLANS = {
    "full": ("llama-grouped", dict(batch=2, seq_len=32, precision="bf16-autocast")),
    "lora": ("gpt2", dict(batch=2, seq_len=32, method="lora", precision="bf16")),
    "qlora, checkpointed": ("llama-tied", dict(seq_len=48, method="qlora", precision="bf16", checkpointing="full")),
    "updates in backward": ("minigpt", dict(optimizer_in_backward=True, precision="bf16")),
}


@pytest.mark.parametrize("model, changes", PLANS.values(), ids=list(PLANS))
def test_what_is_alive_adds_up_to_the_peak(model, changes):
    plan = TrainingPlan(**changes)
    alive, peak = explain(MODELS[model], plan), predict(MODELS[model], plan).peak
    for bucket in BUCKETS:
        assert sum(one.nbytes for one in alive if one.bucket == bucket) == getattr(peak, bucket)
    assert [one.nbytes for one in alive] == sorted((one.nbytes for one in alive), reverse=True)


def test_the_weights_are_the_parameters_of_transformers():
    """By shape and dtype, as torch has them."""
    from collections import Counter

    from minigpt.memory.measured.building import build

    plan = TrainingPlan(precision="bf16", seq_len=8)
    ours = Counter((one.shape, one.dtype) for one in explain(MODELS["llama-grouped"], plan) if one.bucket == "weights")
    model = build(MODELS["llama-grouped"], plan, "cpu")
    theirs = Counter((tuple(p.shape), str(p.dtype).removeprefix("torch.")) for p in model.parameters())
    assert theirs <= ours
    assert all(shape is None for shape, _ in ours - theirs)  # buffers


def test_an_allocation_that_failed_can_be_looked_up():
    """A 70B's MLP matrix in 4 bits: 8192 x 28672 / 2 bytes are the 112.00 MiB that people could not allocate."""
    alive = explain("llama-2-70b", TrainingPlan(method="qlora", precision="bf16", seq_len=64, checkpointing="full"))
    found = [one for one in alive if one.nbytes == 112 * MIB]
    assert {one.name.rsplit(".", 1)[-1] for one in found} == {"gate", "up", "down"} and len(found) == 3 * 80
    assert all(sorted(one.shape) == [8192, 28672] and one.dtype == "nf4" for one in found)


def test_equal_ones_share_a_row_and_the_rest_is_summed():
    alive = explain(MODELS["llama-grouped"], TrainingPlan(seq_len=32))
    text = table(alive, most=3)
    assert len(text.splitlines()) == 1 + 3 + 1 and "smaller rows" in text
    whole = table(alive, most=10_000)
    assert "smaller rows" not in whole and len(whole.splitlines()) < len(alive)


def test_the_command_lists_them(capsys):
    assert main(["gpt2", "--seq-len", "64", "--tensors"]) == 0
    assert "50257 x 768" in capsys.readouterr().out
    assert main(["gpt2", "--seq-len", "64", "--tensors", "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert sum(one["nbytes"] for one in content["tensors"]) == content["peak"]["total"]
