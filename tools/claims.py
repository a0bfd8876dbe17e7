"""The audit of what other texts claim: content/claims.md -> lessons/claims.ipynb. Each claim is a row of a table:

    | 3.7 | what the text claims | **Wrong**: the course's figure | [[ at("07", "Part 3: count them") ]] |

A row has a number, a verdict and a place, or is refused. Beside what every text's placeholders see, the page's see

    at("07", "Part 3: count them")   a link to that heading of lesson 07; "lab05": of the lab
    here("Several cards")            a link to a heading of the page itself
    counted("Right", 3)              how many claims of the third text have the verdict; counted(): how many there are
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import nbformat

from tools import index, page
from tools.links import way

TEXT, PAGE = "content/claims.md", "lessons/claims.ipynb"
BUDGET = {"minutes": {"cpu": 1, "gpu": 1}, "memory_gb": {"ram": 2, "vram": 0}}
VERDICTS = ("Right", "Right if", "Half right", "Wrong", "Not audited")
ROW = re.compile(r"^\| (\d+\.\d+) \|(.*)\|$", re.MULTILINE)
HEADING = re.compile(r"^#+ (.+?)\s*$", re.MULTILINE)
PLACE = re.compile(r"\[\[ (?:at|here)\(")


def make(root: Path, notebooks: dict[str, str]) -> tuple[list, dict] | None:
    """The page's cells and its metadata; None where the course has no such page. ``notebooks`` are the built ones.

    Raises ValueError for a row without its parts, and for a place that no notebook has.
    """
    if not (root / TEXT).exists():
        return None
    text = (root / TEXT).read_text(encoding="utf-8-sig")
    found = verdicts(text)

    def counted(verdict: str | None = None, text_of: int | None = None) -> int:
        if verdict not in (None, *VERDICTS):
            raise ValueError(f"verdict is {verdict!r}; allowed: {', '.join(VERDICTS)}")
        rows = {row: one for row, one in found.items() if text_of is None or row.startswith(f"{text_of}.")}
        return sum(verdict in (None, one) for one in rows.values())

    cells, title = page.make(root / TEXT, {**places(text, notebooks), "counted": counted})
    return cells, {"kind": "claims", "source": TEXT, "title": title, **BUDGET}


def verdicts(text: str) -> dict[str, str]:
    """The verdict of each claim, by its number. Raises ValueError for a row that lacks one, a place or its order."""
    found: dict[str, str] = {}
    for number, rest in ROW.findall(text):
        parts = [part.strip() for part in rest.split(" | ")]
        said = re.match(r"\*\*([^*]+)\*\*", parts[1]) if len(parts) == 3 else None
        if not said or said[1] not in VERDICTS:
            raise ValueError(f"claim {number}: the next column begins with one of **{'**, **'.join(VERDICTS)}**")
        if not PLACE.search(parts[2]):
            raise ValueError(
                f'claim {number}: the last column needs a place, [[ at("07", "Part 1: ...") ]] or here(...)'
            )
        text_of, _, nth = number.partition(".")
        before = [int(other.partition(".")[2]) for other in found if other.startswith(f"{text_of}.")]
        if int(nth) != len(before) + 1:
            raise ValueError(f"claim {number}: the number after {text_of}.{len(before)} is {text_of}.{len(before) + 1}")
        found[number] = said[1]
    return found


def places(text: str, notebooks: dict[str, str]) -> dict[str, Callable[..., str]]:
    """``at`` and ``here``, which refuse a heading that is not there."""
    pages = index.Map(notebooks).pages

    def link(words: str, there: list[str], heading: str, to: str) -> str:
        if heading not in there:
            raise ValueError(f"{to or 'the page'} has no heading {heading!r}; it has: {'; '.join(there)}")
        return f"[{words}]({to}#{heading.replace(' ', '-')})"

    @cache
    def headings(name: str) -> list[str]:
        cells = nbformat.reads(notebooks[pages[name]], as_version=4).cells
        return HEADING.findall("\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown"))

    def at(name: str, heading: str) -> str:
        if name not in pages:
            raise ValueError(f"{name!r} is no notebook; there is {', '.join(pages)}")
        return link(f"{name}, {heading}", headings(name), heading, way(PAGE, pages[name]))

    def here(heading: str) -> str:
        return link("below", HEADING.findall(text), heading, "")

    return {"at": at, "here": here}
