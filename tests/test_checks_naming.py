"""A wrong figure is called by the mistake that leads to it."""

from __future__ import annotations

import pytest

from minigpt import checks
from minigpt.checks import naming
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


def test_one_slip_or_two_are_named_and_a_listed_value_first():
    slips = {"no-head": ("the head is missing", -100), "no-norm": ("a norm is missing", -7), "none": ("nothing", 0)}
    assert naming.diagnose(900, 1000, slips=slips) == ("no-head", "the head is missing (yours 900, right 1,000)")
    id, sentence = naming.diagnose(893, 1000, slips=slips)
    assert id == "no-head+no-norm" and sentence.startswith("the head is missing, and a norm is missing (")
    assert naming.diagnose(900, 1000, {"listed": ("a listed value", 900)}, slips)[0] == "listed"
    assert naming.diagnose(901, 1000, slips=slips) == ("too-few", "99 too few (yours 901, right 1,000)")
