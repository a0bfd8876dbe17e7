"""The checks of lab 11: what they take for true against a GPU's recording, and the book they close.

That each wrong answer is named, and each right one passes, is the bank's business (test_banks.py).
"""

import itertools

import pytest

from minigpt.checks.allocating import curing, messages, placing, recorded, running, searching, sizes
from minigpt.checks.allocating.flawed import FLAWS, Flawed
from minigpt.checks.allocating.messages import Case
from minigpt.checks.closing import by_hand
from minigpt.memory import TrainingPlan, predict
from minigpt.memory.predicted.allocator import Allocator, Options
from minigpt.memory.units import GIB, KIB, MIB
from minigpt.model import GPTConfig
from tests.judged import AnyText, Same, refuses

NANO, PLAN = GPTConfig.preset("nano"), TrainingPlan(batch=8, card="T4", precision="fp32")
FITTING = curing.Case(
    GPTConfig(n_layer=6, n_embd=192, n_head=4, context=256, vocab_size=16384),
    TrainingPlan(batch=4, card="T4", precision="fp32"),
    (138, 247, 50, 106, 164, 143, 250, 117, 162),
    388 * MIB,
)
CUT = (900 * MIB, 5 * MIB, -1, 200 * MIB, 5 * MIB, 300 * MIB, -4, 30 * MIB, 600 * MIB, 700 * MIB)
FULL = Case(2 * GIB, 300 * MIB, 0, CUT)

# ---------------------------------------------------------------- the truth


def test_the_recorded_attention_comes_out_as_the_gpu_had_it():
    events = recorded.attention()
    statistics = running.replay(events).statistics
    assert (statistics.allocated.peak, statistics.reserved.peak) == (recorded.ALLOCATED, recorded.RESERVED)
    trace = placing.true_trace(events)
    requests = [seen.taken for event, seen in zip(events, trace) if event.action == "born"]
    taken = [(at, size) for at, sizes_ in enumerate(requests) for size in sizes_]
    assert taken == list(recorded.SEGMENTS) and len(requests) == 36


@pytest.mark.parametrize("seed", range(12))
def test_the_allocator_without_a_mistake_decides_as_the_courses_does(seed):
    for count, frees in ((12, False), (60, True)):
        events = placing.requests(seed, count, frees)
        assert placing.flawed_trace(events, "") == placing.true_trace(events)


def test_every_mistake_shows_in_the_case_that_a_student_sees_and_no_two_are_one():
    events = placing.requests(0, 25)
    traces = {flaw: placing.flawed_trace(events, flaw) for flaw in ("", *FLAWS)}
    assert not [(a, b) for a, b in itertools.combinations(traces, 2) if traces[a] == traces[b]]


@pytest.mark.parametrize("seed, count", [(0, 20), (1, 3), (2, 40), (3, 12), (4, 0)])
def test_the_best_fit_by_brute_force(seed, count):
    blocks = searching.scene(seed, count)
    for pool in searching.SIZES:
        for size in (256, 4 * KIB, MIB, 3 * MIB, 19 * MIB, 30 * MIB):
            fits = [b for b in blocks if b["free"] and b["pool"] == pool and b["size"] >= size]
            best = sorted(fits, key=lambda b: (b["size"], b["address"]))
            assert searching.taken(blocks, pool, size) == (best[0] if best else None)


def test_the_events_have_what_predict_counts():
    first, second = running.steps(NANO, PLAN, [96, 40])
    for events, length, kind in ((first, 96, "first"), (first + second, 40, "steady")):
        begins = 0 if kind == "first" else len(first)
        alive, most = {}, 0
        for at, (action, key, nbytes) in enumerate(events):
            if action == "born":
                assert key not in alive
                alive[key] = nbytes
            else:
                assert alive.pop(key) == nbytes
            most = max(most, sum(alive.values()) if at >= begins else 0)
        plan = TrainingPlan(batch=8, card="T4", precision="fp32", seq_len=length, step=kind)
        assert most == predict(NANO, plan).peak.total


def test_a_training_has_what_predict_says_of_a_card():
    plan = TrainingPlan(batch=8, seq_len=64, card="T4", precision="fp32")
    wide = GPTConfig(n_layer=2, n_embd=320, n_head=4, context=256, vocab_size=3000)
    statistics, card = running.replay(running.training(wide, plan)).statistics, predict(wide, plan).card
    assert (statistics.reserved.peak, statistics.allocated.peak) == (card.reserved, card.allocated)


def test_steps_of_one_length_are_different_requests():
    events = [event for step in running.steps(NANO, PLAN, [64, 64, 64]) for event in step]
    born = [event.key for event in events if event.action == "born"]
    assert len(born) == len(set(born))


def test_a_message_of_the_courses_own_has_the_numbers_that_are_told():
    message, numbers = messages.told(FULL)
    assert "Tried to allocate 700.00 MiB" in message and numbers["tried"] == 700 * MIB
    assert numbers["in_use"] == round(1.78 * GIB) and numbers["unallocated"] == 385 * MIB
    with pytest.raises(RuntimeError, match="it fits"):
        messages.told(Case(GIB, 0, 0, (MIB,)))


def test_an_empty_cache_helps_in_one_place_alone():
    lengths = list(FITTING.lengths)
    helps = [at for at in range(10) if not FITTING.run([*lengths[:at], "empty_cache", *lengths[at:]])]
    assert helps == [1] and FITTING.run(lengths) and FITTING.run([250, *lengths])
    assert not FITTING.run(lengths, "expandable_segments:True")


# ---------------------------------------------------------------- the book


def test_the_book_is_closed_while_an_answer_runs_and_open_afterwards():
    allocator = Allocator()
    asked = [
        Allocator, lambda: Allocator.allocate(allocator, 1), lambda: Options().round(5),
        lambda: Options().segment_size(5), lambda: Options().splits(5, 5, True), lambda: placing.true_trace([]),
        lambda: messages.told(FULL), lambda: searching.taken([], "small", 1), lambda: running.replay([]),
        lambda: running.run_on(NANO, PLAN, [64], None), lambda: Flawed(len).allocate(5), lambda: sizes.round_slips(5),
    ]  # fmt: skip
    for ask in asked:
        with refuses("asks-course"):
            by_hand(lambda ask=ask: [ask(), 1][1])
    assert allocator.allocate(1).size == 512 and Options().round(5) == 512


# ---------------------------------------------------------------- answers that pretend


def test_numbers_that_equal_everything_gain_nothing():
    for judge, case in ((sizes.rounds, 800), (sizes.takes, 4 * KIB), (sizes.splits, (600 * KIB, 2 * MIB))):
        with pytest.raises(AssertionError, match="yours 7, right"):
            judge(lambda *_: Same(7), case)
    with refuses("edge"):
        sizes.chooses(lambda size: AnyText("large"), MIB)


def test_blocks_that_equal_everything_gain_nothing():
    def allocate(blocks, nbytes, device):
        block = {"address": Same(device(2 * MIB)), "size": Same(512), "segment": 0, "pool": "small", "free": False}
        blocks.append(block)
        return block

    with refuses("bytes-lost"):
        placing.places(allocate, lambda blocks, block: None, placing.requests(0, 12, frees=False))


def test_what_an_answer_did_before_it_failed_is_judged_first():
    def allocate(blocks, nbytes, device):
        if blocks:
            raise KeyError("size")
        blocks.append({"address": device(2 * MIB), "size": 2 * MIB, "segment": 0, "pool": "small", "free": False})
        return blocks[0]

    with refuses("never-split"):
        placing.places(allocate, lambda blocks, block: None, placing.requests(0, 12, frees=False))


def test_a_device_is_asked_for_bytes():
    for size, id in ((2.5, "float-for-int"), (0, "segment-size"), (-1, "segment-size")):
        with refuses(id):
            placing.places(lambda blocks, nbytes, device, size=size: device(size), len, placing.requests(0, 3))


@pytest.mark.parametrize("given, id", [([], "other-steps"), (7, "wrong-type"), ([138, "empty_cache"], "other-steps")])
def test_a_run_of_other_steps_is_refused(given, id):
    with refuses(id):
        curing.empties(lambda lengths, fits: given, FITTING)
