"""A notebook from a Python file that was exported from one: jupytext's and VS Code's cells, nbconvert's, or statements.

Colab's export has no marks between cells. There each statement that is not the lab's own is the student's.
"""

from __future__ import annotations

import ast
import re

import nbformat
from nbformat import NotebookNode

from tools.grading.code import assigned, defined, parsed, squeezed
from tools.grading.files import File
from tools.grading.notebook import grade_id, new_cell, solution
from tools.grading.text import ITSELF, decode, whole

PERCENT = re.compile(r"^# ?%%", re.MULTILINE)
LIGHT = re.compile(r"^# (\+|format_name: light)", re.MULTILINE)
PROMPT = re.compile(r"^# In\s?\[[ \d*]*\]:[ \t]*$", re.MULTILINE)  # nbconvert's


def load_script(file: File, release: NotebookNode) -> NotebookNode:
    """The notebook that ``file`` was exported from. Raises ValueError where no cell of it can be told."""
    try:
        text, _ = decode(file.read())
        text = whole(text)
    except ValueError as error:
        raise ValueError(f"{file.name} is no Python file: {error}") from None
    if PROMPT.search(text):
        cells = _prompts(text)
    elif PERCENT.search(text) or LIGHT.search(text):
        cells = _jupytext(text)
    else:
        cells = _statements(text, release)
    if not cells:
        raise ValueError(f"{file.name} is a script in which no cells can be told; {ITSELF}")
    made = [new_cell(kind, source, f"submitted-{i}") for i, (kind, source) in enumerate(cells)]
    return nbformat.v4.new_notebook(cells=made)


def _jupytext(text: str) -> list[tuple[str, str]]:
    import jupytext

    try:
        style = "py:percent" if PERCENT.search(text) else "py:light"
        notebook = jupytext.reads(PERCENT.sub("# %%", text), fmt=style)
    except Exception:  # another parser's errors are of every kind
        return []
    return [("code" if cell.cell_type == "code" else "markdown", cell.source) for cell in notebook.cells]


def _prompts(text: str) -> list[tuple[str, str]]:
    """nbconvert writes "# In[1]:" above code, and markdown as comments, with two empty lines between cells."""
    cells: list[tuple[str, str]] = []
    text = re.sub(r"\A(#!.*\n|# (-\*- )?coding: .*\n)*", "", text)
    for n, piece in enumerate(PROMPT.split(text)):
        blocks = re.split(r"\n\n\n+", piece.strip("\n"))
        first = len(blocks) if n else 0  # what follows a prompt is code, up to blocks that are comments alone
        while first > min(n, 1) and all(line.startswith("#") or not line for line in blocks[first - 1].split("\n")):
            first -= 1
        first = first if n else 0
        cells += [("code", "\n\n\n".join(blocks[:first]))] if any(blocks[:first]) else []
        cells += [("markdown", re.sub(r"^# ?", "", block, flags=re.MULTILINE)) for block in blocks[first:] if block]
    return cells


def _statements(text: str, release: NotebookNode) -> list[tuple[str, str]]:
    """Cells from statements: those of the lab are left out, each answer in one cell, bare texts as markdown."""
    body = parsed(text)
    given: set[str] = set()
    answers: list[frozenset[str]] = []
    for cell in release.cells:
        statements = (parsed(cell.source) or []) if cell.cell_type == "code" else []
        if grade_id(cell) and solution(cell):
            answers.append(defined(cell.source))
        else:
            given |= {ast.dump(statement) for statement in statements}
        if "parameters" in cell.metadata.get("tags", []):
            names = {name for statement in statements for name in assigned(statement)}
            given |= {ast.dump(one) for one in body or [] if assigned(one) and assigned(one) <= names}
    if body is None or not any(defined(text) & names for names in answers):
        return []
    lines = text.split("\n")
    cells: list[tuple[str, str]] = []
    where: dict[int, int] = {}  # answer: its cell
    end = 0
    for statement in body:
        start, end = end, statement.end_lineno or end  # with the comments above it
        source = "\n".join(lines[start:end]).strip("\n")
        if start >= end or ast.dump(statement) in given:
            continue
        value = statement.value if isinstance(statement, ast.Expr) else None
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            if not _is_header(value.value):
                cells.append(("markdown", value.value.strip("\n")))
            continue
        answer = next((i for i, names in enumerate(answers) if names & defined(source)), None)
        if answer in where:
            cells[where[answer]] = ("code", f"{cells[where[answer]][1]}\n\n\n{source}")
        else:
            if answer is not None:
                where[answer] = len(cells)
            cells.append(("code", source))
    given_text = {squeezed(cell.source) for cell in release.cells}
    texts = [cell for cell in cells if cell[0] == "code" or squeezed(cell[1]) not in given_text]
    return texts


def _is_header(text: str) -> bool:
    return "generated by Colab" in text and "Original file is located at" in text
