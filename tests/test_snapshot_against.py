"""Predicted beside recorded: a training that the tape tells, recorded through the allocator, parts nowhere."""

import json
import random
from dataclasses import replace

import pytest

from minigpt.memory.engine.graph import BORN
from minigpt.memory.plan import TrainingPlan
from minigpt.memory.predicted.reserved import history
from minigpt.memory.snapshot import read
from minigpt.memory.snapshot.__main__ import main
from minigpt.memory.snapshot.against import compare
from minigpt.memory.snapshot.beside import text
from minigpt.memory.snapshot.placing import ENOUGH, agreeing, find
from tests.snapshots import Played, entry, left, snapshot

MODEL = dict(
    model_type="llama", vocab_size=300, hidden_size=64, intermediate_size=160, num_hidden_layers=3,
    num_attention_heads=4, max_position_embeddings=256,
)  # fmt: skip
PLAN = TrainingPlan(batch=3, seq_len=40, card="T4", method="lora", precision="bf16")


@pytest.fixture(scope="module")
def told():
    return history(MODEL, PLAN, 4)


@pytest.fixture(scope="module")
def whole(told):
    return Played(told.tape.events)


def compared(played, path, first=0, plan=PLAN):
    return compare(read(played.save(path, first)), MODEL, plan)


def test_a_whole_training_parts_nowhere(whole, tmp_path):
    found = compared(whole, tmp_path / "whole.pickle")
    assert found.parting is None and found.compared == found.requests and found.place.ways == 1
    assert (found.part, found.number) == ("loading", 0)
    assert found.allocated[0] == found.allocated[1] == whole.peaks()[0]
    assert found.reserved[0] == found.reserved[1] == whole.peaks()[1]
    assert "agree in size and order" in text(found)


@pytest.mark.parametrize("seed", range(12))
def test_cut_anywhere_it_parts_nowhere_and_has_the_peaks_of_its_piece(told, tmp_path, seed):
    chance = random.Random(seed)
    last = chance.randrange(told.parts[1], len(told.tape.events))
    played = Played(told.tape.events[:last])
    first = chance.randrange(len(played.trace) // 2)
    found = compared(played, tmp_path / "cut.pickle", first)
    assert found.parting is None and found.compared == found.requests
    assert found.place.sure and found.place.agree == found.requests
    assert found.allocated[0] == found.allocated[1] and found.reserved[0] == found.reserved[1], text(found)
    assert found.held[0] == found.held[1]


def test_each_part_is_found(told, whole, tmp_path):
    for part, name in enumerate(("loading", "step 1", "step 2")):
        found = compared(whole, tmp_path / "part.pickle", whole.at[told.parts[part]])
        assert (found.part, found.number, found.parting) == (name, 0, None)


@pytest.mark.parametrize(
    "changed", [dict(batch=4), dict(rank=16), dict(optimizer="sgd"), dict(checkpointing="full")], ids=str
)
def test_another_plan_parts_where_the_two_tapes_do(told, whole, tmp_path, changed):
    other = history(MODEL, replace(PLAN, **changed), 4)
    mine, theirs = ([r.nbytes for _, r, kind in t.tape.events if kind == BORN and r.nbytes] for t in (told, other))
    first = next(i for i, pair in enumerate(zip(mine, theirs)) if pair[0] != pair[1])
    found = compared(whole, tmp_path / "other.pickle", plan=replace(PLAN, **changed))
    assert found.parting is not None and found.parting <= first  # before it something else may be let go
    if found.differs == "size":
        assert found.parting == first
        assert (found.asked[0].nbytes, found.asked[1].nbytes) == (theirs[first], mine[first])
        assert "/train.py:7 in" in text(found)
    assert found.part == "loading" and (found.place.agree == first)


def test_a_step_of_another_batch_is_taken_to_begin_with_a_step_and_says_that_it_does_not_fit(told, whole, tmp_path):
    found = compared(whole, tmp_path / "x.pickle", whole.at[told.parts[2]], replace(PLAN, batch=4))
    assert not found.place.sure and found.number == 0 and found.part.startswith("step") and found.parting == 0
    assert text(found).count("warning: nowhere") == 1


def test_a_batch_that_is_copied_in_front_is_skipped_and_said(told, whole, tmp_path):
    first = whole.at[told.parts[2]]
    copied = [entry("alloc", 64 + 512 * i, 8 * 41 * 3) for i in range(2)]
    copied += [entry("free_requested", each["addr"], each["size"]) for each in copied]
    path = snapshot(copied + whole.trace[first:], left(whole.allocator), tmp_path / "copied.pickle")
    found = compare(read(path), MODEL, PLAN)
    assert (found.place.skipped, found.part, found.number, found.parting) == (2, "step 2", 0, None)
    assert "after 2 that no plan knows" in text(found)


def test_what_is_let_go_otherwise_is_a_parting(told, whole, tmp_path):
    """A block that lives on, though every size is right."""
    trace = list(whole.trace)
    place = next(i for i in range(whole.at[told.parts[1]], len(trace)) if trace[i]["action"] == "free_requested")
    asked = sum(e["action"] == "alloc" for e in trace[:place])
    kept = trace[place : place + 2]
    trace = trace[:place] + trace[place + 2 :] + kept
    found = compare(read(snapshot(trace, left(whole.allocator), tmp_path / "kept.pickle")), MODEL, PLAN)
    assert (found.parting, found.differs) == (asked, "let go")
    assert "other memory is let go" in text(found)


def test_a_recording_of_more_steps_than_are_told_says_how_many_it_compares(told, tmp_path):
    played = Played(history(MODEL, PLAN, 16).tape.events)
    found = compared(played, tmp_path / "long.pickle")
    assert found.parting is None and found.compared < found.requests
    assert "more recorded requests are not compared" in text(found)


def test_runs_are_those_of_brute_force():
    chance = random.Random(1)
    for _ in range(200):
        wanted, told = ([chance.choice((1, 2)) for _ in range(chance.randrange(1, 30))] for _ in range(2))
        slow = []
        for start in range(len(told)):
            run = 0
            while run < len(wanted) and start + run < len(told) and wanted[run] == told[start + run]:
                run += 1
            slow.append(run)
        assert agreeing(wanted, told) == slow


def test_of_equal_places_that_is_taken_before_which_as_much_was_held():
    wanted, told = list(range(ENOUGH)), list(range(ENOUGH)) * 3
    place = find(wanted, told, [0], lambda skipped, number: abs(number - 2 * ENOUGH))
    assert place == (0, 2 * ENOUGH, ENOUGH, 3, True)


# ------------------------------------------------------------ the command


@pytest.fixture
def file(whole, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(MODEL))
    return [str(whole.save(tmp_path / "step.pickle")), "--against", str(path)]


GIVEN = ["--batch", "3", "--seq-len", "40", "--method", "lora", "--precision", "bf16", "--card", "T4"]


def test_the_command_shows_both_and_the_same_as_json(file, whole, capsys):
    assert main([*file, *GIVEN]) == 0
    out = capsys.readouterr().out
    assert "peak reserved" in out and "agree in size and order" in out
    assert main([*file, *GIVEN, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["against"]
    assert found["peak_allocated"] == dict(predicted=whole.peaks()[0], recorded=whole.peaks()[0])
    assert found["parts_at"] is None and found["began"]["part"] == "loading"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (GIVEN[:-2], "card is None"),
        ([*GIVEN, "--card", "T5"], "card is 'T5'"),
        ([*GIVEN, "--like", "nobody"], "nobody"),
        ([*GIVEN, "--rank", "0"], "rank is 0"),
    ],
)
def test_wrong_use_is_one_line(file, options, says, capsys):
    assert main([*file, *options]) == 2
    out, err = capsys.readouterr()
    assert out == "" and says in err and err.count("\n") == 1


def test_a_plan_without_a_model_is_refused(file, capsys):
    assert main([file[0], "--batch", "3"]) == 2
    assert "batch is given; a plan needs against" in capsys.readouterr().err


def test_a_recording_without_a_request_is_refused(tmp_path):
    path = snapshot([entry("segment_alloc", 0, 2 << 20)], [], tmp_path / "none.pickle")
    with pytest.raises(ValueError, match="no request"):
        compare(read(path), MODEL, PLAN)
