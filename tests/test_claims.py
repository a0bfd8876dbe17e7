"""The audit of other texts' claims: what a row must have, where it leads; and that none of the course's lacks it."""

from __future__ import annotations

import re

import nbformat
import pytest

from tests.tiny_course import LAB, LESSON, cells
from tools import ROOT, build, claims

HEAD = """---
title: Claims
---

[[ counted() ]] claims, [[ counted('Right') ]] right, [[ counted('Wrong', 2) ]] of text 2 wrong.

"""
TABLE = """| | claim | what is right | audited |
| --- | --- | --- | --- |
| 1.1 | one and one is two | **Right**: [[ 1 + 1 ]] | [[ at("01", "Counting") ]] |
| 1.2 | twice 2 is 5 | **Wrong**: 4 | [[ at("lab01", "Part 1") ]]; [[ here("Computed here") ]] |
| 2.1 | it depends | **Right if** one says so | [[ here("Computed here") ]] |

## Computed here
"""
TEXTS = {"lessons/01-tiny.md": LESSON, "labs/lab01-tiny.md": LAB}


def test_claims_are_built_with_their_links(course):
    root = course(**TEXTS, **{"claims.md": HEAD + TABLE})
    assert build.main([], root) == 0
    text = "\n\n".join(cell.source for cell in cells(root, claims.PAGE).values())
    assert text.startswith("# Claims") and "3 claims, 1 right, 0 of text 2 wrong." in text
    assert "**Right**: 2 | [01, Counting](01-tiny.ipynb#Counting) |" in text
    assert "[lab01, Part 1](../labs/lab01-tiny/lab01-tiny.ipynb#Part-1); [below](#Computed-here) |" in text


FAULTS = {
    "no verdict": ("**Right**: [[ 1 + 1 ]]", "two it is", "claim 1.1: the next column begins with one of **Right**"),
    "another verdict": ("**Right if**", "**True**", "claim 2.1: the next column begins with one of"),
    "no column": ("| one and one is two ", "", "claim 1.1: the next column begins with one of"),
    "no place": ('[[ at("01", "Counting") ]]', "lesson 01", "claim 1.1: the last column needs a place"),
    "no heading": ('"Counting"', '"Accounting"', "01-tiny.ipynb has no heading 'Accounting'; it has: Tiny; Counting"),
    "no heading here": ('here("Computed here") ]] |\n\n', 'here("x") ]] |\n\n', "the page has no heading 'x'"),
    "no notebook": ('at("01"', 'at("09"', "'09' is no notebook; there is lab01, 01"),
    "left out": ("| 1.2 |", "| 1.3 |", "claim 1.3: the number after 1.1 is 1.2"),
    "counts another": ("counted('Right')", "counted('True')", "verdict is 'True'; allowed: Right, Right if"),
}


@pytest.mark.parametrize("why", FAULTS)
def test_a_claim_that_lacks_something_is_refused(course, why):
    right, wrong, words = FAULTS[why]
    text = HEAD + TABLE
    assert right in text
    root = course(**{"claims.md": text.replace(right, wrong)})
    page = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("# Tiny\n\n## Counting\n\n## Part 1")])
    page.metadata["ledger"] = {"title": "Tiny"}
    notebooks = dict.fromkeys(("lessons/01-tiny.ipynb", "labs/lab01-tiny/lab01-tiny.ipynb"), nbformat.writes(page))
    with pytest.raises(ValueError, match=re.escape(words)):
        claims.make(root, notebooks)


def test_every_claim_of_the_five_texts_has_a_verdict_and_a_place():
    found = claims.verdicts((ROOT / claims.TEXT).read_text(encoding="utf8"))
    assert {number[0] for number in found} == set("12345") and len(found) >= 160
    assert set(found.values()) == set(claims.VERDICTS)
    made = nbformat.read(ROOT / claims.PAGE, as_version=4)
    text = "\n\n".join(cell.source for cell in made.cells if cell.cell_type == "markdown")
    for number in found:  # and each is on the page with a link, whose anchor tests/test_links.py looks up
        assert re.search(rf"^\| {re.escape(number)} \|.*\| \[[^\]]+\]\([^)\s]+\).* \|$", text, re.M), number
