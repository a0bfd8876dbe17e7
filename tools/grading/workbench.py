"""A submission under repair: its cells, the release, and which cell is which cell of the release."""

from __future__ import annotations

from dataclasses import dataclass, field

from nbformat import NotebookNode

from tools.grading.code import squeezed
from tools.grading.notebook import first_line, grade_id, new_cell, solution


@dataclass
class Several:
    """What happened to several cells in the same way, as one sentence."""

    names: list[str]
    one: str
    many: str

    def __str__(self) -> str:
        shown = self.names[:6]
        if len(self.names) > len(shown):
            shown.append(f"{len(self.names) - len(shown)} more")
        start = f"{', '.join(shown[:-1])} and {shown[-1]}" if len(shown) > 1 else shown[0]
        return f"{start} {self.many if len(shown) > 1 else self.one}"


@dataclass
class Workbench:
    """``found`` has, by the id of a cell of the release, the student's cell that was recognized as it."""

    release: NotebookNode
    cells: list[NotebookNode]
    notes: list[str | Several] = field(default_factory=list)
    found: dict[str, NotebookNode] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rank = {cell.id: i for i, cell in enumerate(self.release.cells)}
        self.given = {squeezed(cell.source) for cell in self.release.cells if not grade_id(cell)}

    def each(self, name: str, one: str, many: str) -> None:
        """Note that ``name`` ``one`` (was deleted); several such are one sentence, with ``many`` (were deleted)."""
        for note in self.notes:
            if isinstance(note, Several) and note.one == one:
                note.names.append(name)
                return
        self.notes.append(Several([name], one, many))

    def sentences(self) -> list[str]:
        """The notes, a sentence each."""
        return [str(note) for note in self.notes]

    def free(self) -> list[NotebookNode]:
        """The student's cells that are no cell of the release: their own."""
        known = {id(cell) for cell in self.found.values()}
        return [cell for cell in self.cells if id(cell) not in known]

    def at(self, cell: NotebookNode) -> int:
        """Where ``cell`` stands; cells are told apart by what they are, not by what is in them."""
        return next(i for i, other in enumerate(self.cells) if other is cell)

    def around(self, original: NotebookNode) -> tuple[int, int]:
        """The places of the nearest recognized cells before and after ``original`` in the release; -1 and the end."""
        rank = self.rank[original.id]
        known = {self.rank[name]: cell for name, cell in self.found.items()}
        before = max((r for r in known if r < rank), default=None)
        after = min((r for r in known if r > rank), default=None)
        return (-1 if before is None else self.at(known[before])), (
            len(self.cells) if after is None else self.at(known[after])
        )

    def insert(self, place: int, kind: str, source: str) -> NotebookNode:
        """A new cell at ``place``; its id comes last."""
        cell = new_cell(kind, source, "new")
        self.cells.insert(place, cell)
        return cell


def called(original: NotebookNode) -> str:
    """What a cell of the release is called in a sentence."""
    for tag in ("parameters", "setup"):
        if tag in original.metadata.get("tags", []):
            return f"the cell of {tag}"
    return grade_id(original) or f"the lab's cell {first_line(original.source)}"


def is_locked(original: NotebookNode) -> bool:
    """Whether a cell of the release is graded and not for the student to write in: a check, a task."""
    return bool(grade_id(original)) and not solution(original)
