"""Some rows of the table of attacks, graded end to end: what each gained, and what others lost. ``make attacks``: all.

The oracles are the points that the attacker's own honest exercise is worth, and a walk over all files with checksums.
"""

import re

import pytest

from tests import attacks
from tests.attacks.__main__ import HELD
from tests.attacks.run import grade
from tools.grading.box import not_held

SOME = {  # the worst of each kind
    "raises scores in the gradebook", "rights taken away", "patches the package's modules",
    "executes solutions/ by their path", "reads the judge's memory", "an answer that equals everything",
    "forks twice, and leaves that behind", "a script in the feedback",
}  # fmt: skip


@pytest.fixture(scope="module", params=[pytest.param(way, marks=pytest.mark.slow) for way in ("auto", "off")])
def batch(request, tmp_path_factory):
    numbers = [number for number, each in enumerate(attacks.ATTACKS) if each.name in SOME]
    return grade(numbers, request.param, tmp_path_factory.mktemp(request.param))


def test_nobody_gains_anything_by_an_attack_and_nobody_loses_anything(batch):
    assert len(batch.places) == len(SOME) and batch.faults() == [], batch.said


def test_what_is_not_held_is_said_first(batch):
    first = batch.said.splitlines()[0]
    assert (first == f"grade: {not_held(batch.way)}.") == bool(not_held(batch.way))


def test_no_script_is_on_a_page(batch):
    pages = list((batch.root / attacks.GRADING).glob("feedback/*/*/*.html"))
    assert len(pages) == len([row for row in batch.rows.values() if row["status"] == "graded"])
    for page in pages:
        text = page.read_text(encoding="utf8", errors="replace")
        assert not re.search(r"<script[^>]*>[^<]*attack-script|onerror=.?alert|href=.?javascript:", text), page
        assert "\x1b" not in text and page.stat().st_size < 5_000_000, page


def test_the_table_is_long_enough_and_every_kind_is_there():
    assert len(attacks.ATTACKS) >= 60
    assert {each.kind for each in attacks.ATTACKS} == set(HELD)
    assert len({each.name for each in attacks.ATTACKS}) == len(attacks.ATTACKS)
