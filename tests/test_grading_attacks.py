"""Some rows of the table of attacks, graded end to end: what each gained, and what others lost. ``make attacks``: all.

The oracles are the points that the attacker's own honest exercise is worth, and a walk over all files with checksums.
"""

import pytest
from bs4 import BeautifulSoup

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


def runs(page: str) -> list[str]:
    """What would run in a browser. An attacker's own lines, which are shown as text, may look like it."""
    tags = BeautifulSoup(page, "html.parser")(True)
    found = [str(tag) for tag in tags if tag.name in ("script", "iframe", "object", "embed", "base", "svg")]
    for tag in tags:
        for name, value in tag.attrs.items():
            if name.lower().startswith("on") or "javascript:" in str(value).lower():
                found.append(f"{tag.name} {name}={value}")
    return found


def test_a_page_with_a_script_is_recognized():
    assert runs("<p>&lt;img src=x onerror=alert(1)&gt;</p>") == []
    for page in ("<script>1</script>", "<img src=x onerror=alert(1)>", "<A HREF='JavaScript:alert(1)'>x</A>"):
        assert len(runs(page)) == 1


def test_no_script_is_on_a_page(batch):
    pages = list((batch.root / attacks.GRADING).glob("feedback/*/*/*.html"))
    assert len(pages) == len([row for row in batch.rows.values() if row["status"] == "graded"])
    for page in pages:
        text = page.read_text(encoding="utf8", errors="replace")
        assert runs(text) == [], page
        assert "\x1b" not in text and page.stat().st_size < 5_000_000, page


def test_the_table_is_long_enough_and_every_kind_is_there():
    assert len(attacks.ATTACKS) >= 60
    assert {each.kind for each in attacks.ATTACKS} == set(HELD)
    assert len({each.name for each in attacks.ATTACKS}) == len(attacks.ATTACKS)
