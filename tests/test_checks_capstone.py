"""The checks of lab 14: rows and updates, what a plan may not give up, the book they close, and what a CPU trains.

That each wrong answer is named, and each right one passes, is the bank's business (test_banks.py).
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from minigpt.checks.capstone import byhand, planning, rules, small
from minigpt.checks.capstone.situation import Situation, packed
from minigpt.checks.closing import by_hand
from minigpt.lora import adapter_parameters
from minigpt.memory import Architecture, TrainingPlan, predict
from minigpt.memory.fits import fits
from minigpt.memory.measured.step import measure
from minigpt.memory.measured.trained import batches, train
from minigpt.memory.predicted.flops import flops
from minigpt.memory.predicted.reserved import reserve
from minigpt.memory.predicted.throughput import step_seconds
from minigpt.model import IGNORE
from tests.judged import AnyText, refuses

TOLD = dict(
    model="smollm2-135m", card="T4", lengths={100: 40, 250: 12, 400: 3}, documents=(8, 16), trained=10**5, hours=1
)
PLAN = TrainingPlan(card="T4", method="lora", precision="fp16", batch=3, accumulation=3, seq_len=400)
LEAN = TrainingPlan(
    card="T4", method="qlora", precision="fp16", autocast=True, accumulation=3, seq_len=8192, sequences="packed",
    checkpointing="full", loss="fused",
)  # fmt: skip
SITUATION = Situation.of(TOLD)

# ---------------------------------------------------------------- rows and updates


@pytest.mark.slow
def test_documents_are_packed_as_trl_packs_them():
    from datasets import Dataset
    from trl.data_utils import pack_dataset

    for lengths, seq_len in (({100: 40, 250: 12, 400: 3}, 400), ({7: 9, 5: 9, 3: 9}, 11), ({64: 5}, 64)):
        documents = [[1] * length for length, count in lengths.items() for _ in range(count)]
        theirs = pack_dataset(Dataset.from_dict({"input_ids": documents}), seq_len, "bfd")
        assert packed(tuple(lengths.items()), seq_len) == len(theirs)


def test_an_update_is_counted_in_documents_whatever_a_row_holds():
    assert SITUATION.rows(PLAN) == SITUATION.how_many == 55 and SITUATION.updates(PLAN) == 7
    assert SITUATION.documents_of(PLAN) == 9
    together = replace(PLAN, sequences="packed")
    rows = SITUATION.rows(together)
    assert rows == packed(SITUATION.lengths, 400) < 55
    assert SITUATION.documents_of(together) == pytest.approx(55 * 9 / rows)


def test_a_plan_comes_to_what_the_engine_says_of_all_its_passes():
    found = planning.outcome(PLAN, SITUATION)
    card = reserve("smollm2-135m", PLAN)
    assert (found.allocated, found.reserved) == (card.allocated, card.reserved)
    assert found.hours * 3600 == pytest.approx(7 * step_seconds("smollm2-135m", PLAN, mfu=0.5).total)


@pytest.mark.parametrize("frozen, again", [(False, False), (True, False), (False, True), (True, True)])
def test_flops_by_hand_are_the_engines_to_what_adapters_and_attention_add(frozen, again):
    a = Architecture.of("llama-7b")
    plan = TrainingPlan(
        batch=64, seq_len=4, method="lora" if frozen else "full", rank=1, checkpointing="reentrant" if again else "none"
    )
    by_weight = flops(a, plan).total / plan.tokens
    head = a.n_embd * a.vocab_size  # which is not run again
    mine = byhand.per_weight(frozen, again) * a.linear_parameters + byhand.per_weight(frozen, False) * head
    assert by_weight == pytest.approx(mine, rel=0.005)


# ---------------------------------------------------------------- what is kept


def test_what_is_trained_is_counted_as_the_adapters_are():
    for more, names in ((dict(), "all-linear"), (dict(rank=3, targets="q,v"), ["q_proj", "v_proj"])):
        plan = replace(PLAN, **more)
        assert rules.trainable(plan, "smollm2-135m") == adapter_parameters("smollm2-135m", plan.rank, names)
    full = replace(PLAN, method="full", precision="fp32")
    assert rules.trainable(full, "smollm2-135m") == Architecture.of("smollm2-135m").parameters


def test_full_fine_tuning_counts_where_it_is_updated_in_float32():
    full = dict(method="full", card="T4", batch=2, accumulation=5, seq_len=400)
    for more in (dict(), dict(precision="fp16-autocast")):
        rules.keeps(TrainingPlan(**full, **more), SITUATION)
    with refuses("trained-in-16-bits"):
        rules.keeps(TrainingPlan(**full, precision="fp16"), SITUATION)


# ---------------------------------------------------------------- the book


def test_the_book_is_closed_while_a_plan_is_given_and_open_afterwards():
    asked = [
        lambda: predict("smollm2-135m", PLAN), lambda: reserve("smollm2-135m", PLAN),
        lambda: step_seconds("smollm2-135m", PLAN), lambda: fits("smollm2-135m", PLAN),
        lambda: planning.outcome(PLAN, SITUATION), lambda: rules.trainable(PLAN, "smollm2-135m"),
        lambda: byhand.per_weight(True, True), lambda: byhand.sizes("smollm2-135m"), lambda: small.plan(PLAN),
    ]  # fmt: skip
    planning.outcome(PLAN, SITUATION), rules.trainable(PLAN, "smollm2-135m")  # what is remembered is not told, either
    for ask in asked[:-1]:
        with refuses("asks-course"):
            by_hand(lambda ask=ask: [ask(), 1][1])
    assert by_hand(asked[-1]).card is None  # it tells nothing


# ---------------------------------------------------------------- plans that pretend


class Fitting(TrainingPlan):
    """A plan that is another one whenever it is looked at again."""

    looked = 0

    def __getattribute__(self, name):
        if name == "batch":
            type(self).looked += 1
            return 3 if type(self).looked % 2 else 1
        return super().__getattribute__(name)


def test_a_plan_is_read_once_and_made_anew():
    said = {**vars(PLAN)}

    class Changing(dict):
        def __getitem__(self, name):
            said["batch"] = 1
            return super().__getitem__(name)

    for answer in (lambda: PLAN, lambda: {**said}):
        planning.allocates(answer, TOLD)
        planning.in_time(answer, TOLD)
    for answer in (lambda: Changing(said), lambda: Fitting(**vars(PLAN))):
        with refuses("unsteady"):
            planning.allocates(answer, TOLD)
    assert rules.plan_of({"card": "T4", "batch": 7}) == TrainingPlan(card="T4", batch=7)


def test_values_that_equal_everything_gain_nothing():
    class Any:
        def __eq__(self, other):
            return True

        __hash__ = object.__hash__

    with refuses("wrong-type"):
        planning.allocates(lambda: dict(card="T4", batch=Any()), TOLD)
    with refuses("refused", "method is 'magic'"):
        planning.allocates(lambda: dict(card="T4", method=AnyText("magic")), TOLD)


# ---------------------------------------------------------------- what a CPU trains

PLANS = {
    "padded": replace(LEAN, sequences="padded", loss="trl", kbit_preparation=False, autocast=False),
    "offload": replace(PLAN, sequences="packed", checkpointing="offload", optimizer="adamw8bit", rank=64),
}


@pytest.mark.parametrize("name", PLANS)
def test_a_step_of_the_small_copy_is_what_is_predicted(name):
    plan = small.plan(PLANS[name])
    read, right = measure(small.MODEL, plan, "fake"), predict(small.MODEL, plan)
    assert read.ledger == replace(right.ledger, temporary=read.ledger.temporary)
    assert read.peak.total == right.peak.total


def test_rows_keep_documents_apart():
    plan = TrainingPlan(batch=1, seq_len=6, sequences="packed")
    batch = next(batches([[5, 6, 7, 8], [9, 10, 11]], plan))
    assert batch.tokens.tolist() == [[5, 6, 7, 8, 9, 10]]
    assert batch.targets.tolist() == [[IGNORE, 6, 7, 8, IGNORE, 10]]
    assert batch.position_ids.tolist() == [[0, 1, 2, 3, 0, 1]]
    padded = next(batches([[5, 6, 7, 8], [9]], replace(plan, sequences="padded", batch=2)))
    assert padded.attention_mask.tolist() == [[1, 1, 1, 1, 0, 0], [1, 0, 0, 0, 0, 0]]
    assert padded.targets[1].tolist() == [IGNORE] * 6


def test_a_plan_trains():
    torch.manual_seed(0)
    documents = torch.randint(1, 250, (20, 30)).tolist()
    plan = replace(small.plan(LEAN), seq_len=64)
    told = train(small.MODEL, plan, documents, 4, lr=1e-2)
    assert told["memory"].peak.total == predict(small.MODEL, plan).peak.total
    assert len(told["losses"]) == 4 and told["losses"][-1] < told["losses"][0] - 0.5
