"""A wrong figure is called by the mistake that leads to it."""

from __future__ import annotations

import pytest

from minigpt import checks
from minigpt.checks import naming
from minigpt.checks.counting import static
from tests.judged import refuses


@pytest.mark.parametrize(
    "got, id",
    [
        (round(10**9 * 2**30 / 10**9), "gib-for-gb"),
        (round(10**9 * 10**9 / 2**30), "gb-for-gib"),
        (8 * 10**9, "bits"),
        (10**9 // 8, "eighth"),
        (2 * 10**9, "twice"),
        (10**9 // 2, "half"),
        (4 * 10**9, "four-times"),
        (10**9 // 4, "quarter"),
        (0, "nothing-counted"),
        (10**9 + 7, "too-many"),
    ],
)
def test_ratios_of_bytes_are_named(got, id):
    with refuses(id, f"^bytes: .* \\(yours {got:,}, right 1,000,000,000 bytes\\)$"):
        checks.integer(got, 10**9, "bytes", unit="bytes")


@pytest.mark.parametrize("got, unit", [(13.48, "GB"), (12.55, "GiB"), (13476.8, "MB"), (12852.5, "MiB")])
def test_large_units_are_named(got, unit):
    with refuses(f"in-{unit.lower()}", f"is in {unit}; whole bytes"):
        checks.integer(got, 13_476_831_232, "weights", unit="bytes")


def test_ratios_of_counts_that_are_no_bytes_are_not_called_bits():
    with refuses("too-many", "^count: 70 too many"):
        checks.integer(80, 10, "count")


SLIPS = {"no-head": ("the head is missing", -100), "no-norm": ("a norm is missing", -7), "none": ("nothing", 0)}


def test_one_slip_or_two_are_named_and_a_listed_value_first():
    assert naming.diagnose(900, 1000, slips=SLIPS) == ("no-head", "the head is missing (yours 900, right 1,000)")
    id, sentence = naming.diagnose(893, 1000, slips=SLIPS)
    assert id == "no-head+no-norm"
    assert sentence.startswith("two things: (1) the head is missing; (2) a norm is missing (")
    assert naming.diagnose(900, 1000, {"listed": ("a listed value", 900)}, SLIPS)[0] == "listed"
    assert naming.diagnose(901, 1000, slips=SLIPS) == ("too-few", "99 too few (yours 901, right 1,000)")


def test_slips_about_one_thing_are_not_added():
    assert naming.diagnose(893, 1000, slips=[SLIPS])[0] == "too-few"
    beside = {"twice": ("a block is counted twice", 50)}
    assert naming.diagnose(950, 1000, slips=[SLIPS, beside])[0] == "no-head+twice"


def test_slips_that_leave_one_difference_are_named_together():
    same = {"no-q": ("q_proj is missing", -5), "no-k": ("k_proj is missing", -5)}
    id, sentence = naming.diagnose(95, 100, slips=[same])
    assert id == "no-q" and sentence.startswith("q_proj is missing; or k_proj is missing (")
    id, sentence = naming.diagnose(88, 100, slips=[same, {"no-norm": SLIPS["no-norm"]}])
    assert id == "no-q+no-norm"
    assert sentence.startswith("two things: (1) q_proj is missing; or k_proj is missing; (2) a norm is missing (")


def test_where_several_pairs_leave_a_difference_none_is_named():
    slips = {"a": ("a", 1), "b": ("b", 6), "c": ("c", 2), "d": ("d", 5)}
    assert naming.diagnose(107, 100, slips=slips)[0] == "too-many"
    assert naming.diagnose(103, 100, slips=slips)[0] == "a+c"


def test_a_telling_ratio_is_simpler_than_two_slips():
    slips = {"a": ("a", -30), "b": ("b", -20)}
    assert naming.diagnose(50, 100, slips=slips, unit="bytes")[0] == "half"
    assert naming.diagnose(50, 100, slips=slips)[0] == "a+b"


def test_float32_moments_without_step_counts_are_two_things():
    """Not one that nobody does: a step count for each parameter, which is as many bytes."""
    parameters, tensors = 90_000, 27
    slips = static.precision_slips(parameters, tensors, "bf16")["optimizer"]
    id, sentence = naming.diagnose(8 * parameters, 4 * parameters + 4 * tensors, slips=slips)
    assert id == "no-step-counts+float32-moments"
    assert sentence.startswith(
        "two things: (1) AdamW's step count is missing: a float32 for each tensor; (2) 8 bytes per parameter are booked"
    )


def test_a_slip_that_an_earlier_case_rules_out_is_not_named_beside_another():
    def check(n):  # with one layer no k_proj is asked for
        slips = {"no-q": ("q_proj is missing", -5), "no-k": ("k_proj is missing", -5 if n > 1 else 0)}
        checks.integer(answers[n], 100, f"{n} layers", slips=slips)

    answers = {1: 100, 2: 95}
    with refuses("no-k", "^2 layers: k_proj is missing \\("):
        checks.score("", checks.part(1, check, each=[1, 2]))
    with refuses("no-q", "^2 layers: q_proj is missing; or k_proj is missing \\("):
        checks.score("", checks.part(1, check, each=[2]))
    answers[1] = 95
    with refuses("no-q", "^1 layers: q_proj is missing \\("):  # what is ruled out is not ruled out for the next part
        checks.score("", checks.part(1, check, each=[1]))


def test_buckets_rule_slips_out_one_by_one():
    slips = {"a": {"head": ("the head is missing", -3)}, "b": {"head": ("the head", -3), "norm": ("the norm", -3)}}

    def check(got):
        checks.buckets(got, {"a": 10, "b": 20}, "step", slips=slips)

    with refuses("head", "^step, b: the head; or the norm"):  # the first bucket says nothing of the second
        checks.score("", checks.part(1, check, each=[{"a": 10, "b": 17}]))
