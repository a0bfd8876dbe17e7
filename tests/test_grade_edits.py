"""Whatever editors and people do to a notebook's cells, nothing that was typed is lost: random edits of a real lab.

Every typed piece carries a mark, MARK1, MARK2, and so on. The oracle is the edited file itself: each mark in it must be
in the repaired notebook, or, in cells that the course wrote, named in a note.
"""

from __future__ import annotations

import json
import re
from copy import deepcopy

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tools import ROOT
from tools.grading.notebook import grade_id, parse, read, solution
from tools.grading.repair import repair

MARK = re.compile(r"MARK\d+x")
RELEASE = {lab: read(ROOT / "labs" / lab / f"{lab}.ipynb") for lab in ("lab01-count", "lab07-lora")}


class Edited:
    """A solved copy of a lab, as plain JSON, and the edits that hands and editors make to it."""

    def __init__(self, lab: str) -> None:
        self.data = json.loads(json.dumps(RELEASE[lab]))
        self.cells, self.marks = self.data["cells"], 0
        for cell in self.cells:
            if "raise NotImplementedError()" in cell["source"]:
                cell["source"] = cell["source"].replace("raise NotImplementedError()", f"return {self.mark()!r}")
            if cell["id"].endswith("-answer"):
                cell["source"] += f"\n\n16 bytes, {self.mark()}"

    def mark(self) -> str:
        self.marks += 1
        return f"MARK{self.marks}x"

    def type(self, i: int, line: int, how: int) -> None:
        """A statement, a comment, the end of a line, or a sentence, somewhere in a cell."""
        cell = self.cells[i]
        lines = cell["source"].split("\n")
        line %= len(lines) + 1
        if how == 2:
            lines[min(line, len(lines) - 1)] += f"  # {self.mark()}"
        else:
            typed = {0: f"own = '{self.mark()}'", 1: f"# {self.mark()}", 3: f"I think {self.mark()}"}[how]
            lines.insert(line, typed)
        cell["source"] = "\n".join(lines)

    def split(self, i: int, line: int, loses: bool) -> None:
        cell = self.cells[i]
        lines = cell["source"].split("\n")
        line %= len(lines)
        below = deepcopy(cell) | {"source": "\n".join(lines[line:]), "id": f"split-{len(self.cells)}"}
        if loses:
            below["metadata"] = {}
        cell["source"] = "\n".join(lines[:line])
        self.cells.insert(i + 1, below)

    def merge(self, i: int, gap: bool) -> None:
        if i + 1 < len(self.cells):
            below = self.cells.pop(i + 1)
            self.cells[i]["source"] += ("\n\n" if gap else "\n") + below["source"]

    def copy(self, i: int, j: int) -> None:
        self.cells.insert(j, deepcopy(self.cells[i]) | {"id": f"copy-{len(self.cells)}"})

    def move(self, i: int, j: int) -> None:
        self.cells.insert(j, self.cells.pop(i))

    def delete(self, i: int) -> None:
        if len(self.cells) > 20:
            del self.cells[i]

    def turn(self, i: int) -> None:
        cell = self.cells[i]
        code = cell["cell_type"] != "code"
        self.cells[i] = {key: cell[key] for key in ("id", "metadata", "source") if key in cell}
        self.cells[i] |= {"cell_type": "code", "outputs": []} if code else {"cell_type": "markdown"}

    def own(self, i: int) -> None:
        code = {"cell_type": "code", "source": f"scratch = '{self.mark()}'", "metadata": {}, "outputs": []}
        self.cells.insert(i, code)

    def forget(self, what: int) -> None:
        """An editor that drops ids, or metadata, or writes the ids as Colab does."""
        for cell in self.cells:
            if what == 0:
                cell.pop("id", None)
            elif what == 1:
                cell["metadata"] = {}
            elif "id" in cell:
                cell["metadata"] = {**cell["metadata"], "id": cell.pop("id"), "outputId": "x"}


number = st.integers(0, 200)
TYPING = st.tuples(st.just("type"), st.tuples(number, number, st.integers(0, 3)))
EDITS = {
    "split": st.tuples(number, number, st.booleans()),
    "merge": st.tuples(number, st.booleans()),
    "copy": st.tuples(number, number),
    "move": st.tuples(number, number),
    "delete": st.tuples(number),
    "turn": st.tuples(number),
    "own": st.tuples(number),
    "forget": st.tuples(st.integers(0, 2)),
}
edits = st.lists(
    st.one_of(TYPING, TYPING, TYPING, *[st.tuples(st.just(name), args) for name, args in EDITS.items()]),
    min_size=5,
    max_size=25,
)


def edited(lab: str, steps: list) -> dict:
    book = Edited(lab)
    for name, args in steps:
        places = {"copy": 2, "move": 2, "forget": 0}.get(name, 1)
        getattr(book, name)(*[a % len(book.cells) for a in args[:places]], *args[places:])
    return book.data


@pytest.mark.slow
@pytest.mark.parametrize("lab", RELEASE)
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=edits)
def test_nothing_typed_is_lost(lab, steps):
    release = RELEASE[lab]
    data = edited(lab, steps)
    typed = [cell["source"] for cell in data["cells"]]
    try:
        repaired, notes = repair(parse(deepcopy(data)), release)
    except ValueError as error:
        assert "\n" not in str(error)
        return
    text = "\n".join(cell.source for cell in repaired.cells)
    assert {*MARK.findall("\n".join(typed))} <= {*MARK.findall(text)}, notes
    wanted = [grade_id(cell) for cell in release.cells if grade_id(cell)]
    found = [grade_id(cell) for cell in repaired.cells if grade_id(cell)]
    assert sorted(found) == sorted(wanted)  # each once
    graded = {grade_id(cell): cell for cell in release.cells if grade_id(cell)}
    for cell in repaired.cells:
        if original := graded.get(grade_id(cell)):
            assert (cell.cell_type, cell.metadata, cell.id) == (original.cell_type, original.metadata, original.id)
            assert solution(original) or cell.source == original.source
    again, more = repair(deepcopy(repaired), release)
    assert [cell.source for cell in again.cells] == [cell.source for cell in repaired.cells] and more == []
