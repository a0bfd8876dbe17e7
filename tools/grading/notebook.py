"""A notebook of any version in today's form: format 4.5, an id on every cell and none twice, no outputs.

Read with our own few lines, as nbformat refuses, or warns of, much that editors and people make of a file.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath

import nbformat
from nbformat import NotebookNode

from tools.grading.files import File, _open, said
from tools.grading.text import AGAIN, ITSELF, decode, loads, whole

CELL_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
MOST_CELLS = 2_000


def read(path: Path) -> NotebookNode:
    """The notebook in the file at ``path``. Raises ValueError, one sentence, where it is none."""
    return load(File(PurePosixPath(path.name), path.stat().st_size, lambda: _open(path)))[0]


def load(file: File) -> tuple[NotebookNode, list[str]]:
    """The notebook in ``file``, and how it had to be read, a sentence each. Raises ValueError, one sentence."""
    data = file.read()
    try:
        text, encoding = decode(data)
        notebook = parse(loads(text))
    except ValueError as error:
        raise ValueError(f"{file.name} is not a notebook: {error}") from None
    return notebook, [] if encoding == "utf-8" else [f"{file.name} was saved as {encoding} and read all the same"]


def parse(data: dict) -> NotebookNode:
    """The notebook in an object of JSON. Raises ValueError for what is none."""
    cells = data.get("cells")
    if cells is None and isinstance(data.get("worksheets"), list):  # formats 2 and 3
        cells = [cell for sheet in data["worksheets"] if isinstance(sheet, dict) for cell in sheet.get("cells") or []]
    if not isinstance(cells, list):
        shortcut = {"doc_id", "resource_key"} & set(data) or "google.com" in str(data.get("url", ""))
        raise ValueError(
            "it is a shortcut to a file on Google Drive; hand in the notebook itself, by File, Download"
            if shortcut
            else f"it is JSON without cells; {ITSELF}"
        )
    if len(cells) > MOST_CELLS:
        raise ValueError(f"it has {len(cells):,} cells, and at most {MOST_CELLS:,} are read; {AGAIN}")
    made: list[NotebookNode] = []
    seen: set[str] = set()
    for i, cell in enumerate(cells):
        if not isinstance(cell, dict):
            raise ValueError(f"cell {i + 1} of it is no cell; {AGAIN}")
        made.append(_cell(cell, i, seen))
    metadata = data.get("metadata") if isinstance(data.get("metadata"), dict) else {}
    notebook = NotebookNode(nbformat=4, nbformat_minor=5, metadata=nbformat.from_dict(metadata), cells=made)
    notebook.metadata.pop("widgets", None)  # states of progress bars; some editors write them broken
    return notebook


def _cell(cell: dict, i: int, seen: set[str]) -> NotebookNode:
    source = whole(cell.get("source", cell.get("input", "")) or "")
    if cell.get("cell_type") == "heading":
        source = f"{'#' * int(cell['level']) if cell.get('level') in range(1, 7) else '#'} {source}"
    metadata = nbformat.from_dict(cell["metadata"] if isinstance(cell.get("metadata"), dict) else {})
    known = metadata.get("nbgrader")
    if "nbgrader" in metadata and not (isinstance(known, dict) and isinstance(known.get("grade_id"), str)):
        del metadata["nbgrader"]
    tags = metadata.get("tags")
    if "tags" in metadata and not (isinstance(tags, list) and all(isinstance(tag, str) for tag in tags)):
        del metadata["tags"]
    identity = cell.get("id") or metadata.get("id")  # Colab writes it into the metadata
    if not isinstance(identity, str) or not CELL_ID.fullmatch(identity) or identity in seen:
        identity = f"submitted-{i}" if f"submitted-{i}" not in seen else f"submitted-{i}-again"
    seen.add(identity)
    made = new_cell("code" if cell.get("cell_type") == "code" else "markdown", source, identity)
    made.metadata = metadata
    pictures = cell.get("attachments")
    if made.cell_type == "markdown" and isinstance(pictures, dict):  # in a written answer
        sound = {
            k: v for k, v in pictures.items() if isinstance(v, dict) and all(isinstance(x, str) for x in v.values())
        }
        made.attachments = nbformat.from_dict(sound)
    return made


def new_cell(kind: str, source: str, identity: str) -> NotebookNode:
    """A cell without outputs: "code", or else markdown."""
    make = nbformat.v4.new_code_cell if kind == "code" else nbformat.v4.new_markdown_cell
    return make(source, id=identity)


def grade_id(cell: NotebookNode) -> str | None:
    """nbgrader's name of a graded cell."""
    metadata = cell.metadata.get("nbgrader")
    return metadata.get("grade_id") if isinstance(metadata, dict) else None


def solution(cell: NotebookNode) -> bool:
    """Whether the student writes in this cell."""
    return bool(cell.metadata["nbgrader"].get("solution"))


def first_line(source: str) -> str:
    """What a cell is called in a sentence: its first line of code or text."""
    lines = [line.strip() for line in source.splitlines() if line.strip()]
    return f"`{said(next((line for line in lines if not line.startswith('#')), lines[0] if lines else ''), 50)}`"
