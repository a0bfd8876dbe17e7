"""From the short tags that authors write to nbgrader's metadata, and the rules that keep answers in.

    tag          cell       needs          becomes
    exercise     code       name           a solution cell: the region between BEGIN and END SOLUTION is cleared
    check        code       name, points   locked tests; BEGIN/END HIDDEN TESTS is cleared in the student version
    task         Markdown   name, points   a written answer graded by hand; BEGIN/END MARK SCHEME is cleared

Ids are stable: a named cell's id is its name, any other's comes from the notebook and the cell's text. So
editing one cell changes one id, and building twice changes none.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections import Counter

from IPython.core.inputtransformer2 import TransformerManager
from nbformat.v4 import new_markdown_cell

from tools import check_form
from tools.opening import FOLDED

GRADED = {"exercise": "code", "check": "code", "task": "markdown"}  # tag -> the kind of cell it marks
TAGS = (*GRADED, "parameters", "setup", "hide-input", "raises-exception")
REGIONS = {"SOLUTION": "exercise", "HIDDEN TESTS": "check", "MARK SCHEME": "task"}  # region -> its tag
MARKS = {f"### {word} {region}" for region in REGIONS for word in ("BEGIN", "END")}  # as nbgrader looks for them
LIKE_A_MARK = {
    "code": re.compile(r"###|^\s*#+\s*(?i:begin|end)\b"),
    "markdown": re.compile(r"^\s*#+\s*(?i:begin|end)\b"),
}
OPTIONS = ("name", "tags", "points")
RESERVED = ("title", "bootstrap", "next")  # names of the cells that the build adds
MAX_LINES = 45  # of a code cell: one screen
MAX_SHOWN = 15  # of one that is neither folded nor an exercise or a check: more is plumbing, or two ideas
NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,55}")
SILENT = re.compile(r"!\[\s*\]\(|<img(?![^>]*\balt=[\"']\s*[^\"'\s])")  # a picture without alt text


def expand(cells: list, notebook: str, *, graded: bool) -> list:
    """Cells as jupytext reads them -> cells with ids and nbgrader metadata. ``graded`` is True in a lab.

    Raises ValueError, naming the cell, for what nbgrader or a reader would stumble over.
    """
    out, names = [], set(RESERVED)
    seen: Counter[str] = Counter()
    for cell in apart(cells):
        what = _check(cell, graded)
        name, tags, points = (cell.metadata.get(option) for option in OPTIONS)
        own = {name} if name else set()
        if "task" in (tags or []):  # the cell for the answer has a name, too
            own.add(f"{name}-answer")
        if own & names:
            raise ValueError(f"{what}: the name is taken; each name stands once in a notebook")
        names |= own
        digest = hashlib.sha256(f"{notebook}\0{cell.cell_type}\0{cell.source}".encode()).hexdigest()[:12]
        cell.id = name or f"{digest}-{seen[digest]}"
        seen[digest] += 1
        cell.metadata = {"tags": list(tags)} if tags else {}
        if "hide-input" in (tags or []):  # JupyterLab reads no tags: this folds the cell there
            cell.metadata["jupyter"] = dict(FOLDED)
        out.append(cell)
        kind = _kind(cell)
        if kind:
            cell.metadata["nbgrader"] = _nbgrader(kind, name, points)
        if kind == "task":  # the task itself is locked: the student writes below it
            out.append(new_markdown_cell("*Your answer:*", id=f"{name}-answer"))
    for cell in out:
        if _kind(cell) == "check":
            check_form.refuse_other_forms(cell.id, cell.source)
    _check_order(out)
    return out


def apart(cells: list) -> list:
    """Cells, with text after a folded answer in a cell of its own: in one cell it would stick to the answer."""
    out = []
    for cell in cells:
        parts = [cell.source]
        if cell.cell_type == "markdown" and not cell.metadata:
            parts = re.split(r"(?<=</details>)\n\s*\n(?=\S)", cell.source)
        out += [cell, *(new_markdown_cell(part) for part in parts[1:])]
        cell.source = parts[0]
    return out


def _kind(cell) -> str | None:
    return next((tag for tag in cell.metadata.get("tags", []) if tag in GRADED), None)


def _nbgrader(kind: str, name: str, points: int | None) -> dict:
    metadata = {
        "schema_version": 3,
        "grade_id": name,
        "cell_type": GRADED[kind],
        "grade": kind == "check",
        "locked": kind != "exercise",
        "solution": kind == "exercise",
        "task": kind == "task",
    }
    return metadata if kind == "exercise" else {**metadata, "points": points}


def _check(cell, graded: bool) -> str:
    """Refuse a cell that breaks a rule. Returns the words that name the cell."""
    options = cell.metadata
    name, tags = options.get("name"), options.get("tags", [])
    first_line = cell.source.strip().split("\n")[0][:50]
    what = f"cell {name!r}" if name is not None else f"cell starting {first_line!r}"
    unknown = [option for option in options if option not in OPTIONS]
    if unknown:
        raise ValueError(f"{what}: option {unknown[0]!r}; allowed: {', '.join(OPTIONS)}")
    if not isinstance(tags, list):
        raise ValueError(f"{what}: tags is {tags!r}; it must be a list, as in [exercise]")
    for tag in tags:
        if tag not in TAGS:
            raise ValueError(f"{what}: tag {tag!r}; allowed: {', '.join(TAGS)}")
    if name is not None and not (isinstance(name, str) and NAME.fullmatch(name)):
        raise ValueError(f"{what}: a name is lower-case letters, digits and hyphens, 56 at most")

    kinds = [tag for tag in tags if tag in GRADED]
    if len(kinds) > 1:
        raise ValueError(f"{what}: tagged {' and '.join(kinds)}; a cell is one of them")
    kind = kinds[0] if kinds else None
    if kind and not graded:
        raise ValueError(f"{what}: tagged {kind}, in a lesson; graded cells belong to a lab")
    if kind and cell.cell_type != GRADED[kind]:
        raise ValueError(f"{what}: tagged {kind}, on a {cell.cell_type} cell; that tag is for {GRADED[kind]} cells")
    if kind and name is None:
        raise ValueError(f"{what}: tagged {kind}, without a name; nbgrader knows a graded cell by its name")

    points = options.get("points")
    if kind in ("check", "task"):
        if isinstance(points, bool) or not isinstance(points, int) or points < 1:
            raise ValueError(f"{what}: points is {points!r}; a {kind} needs an integer of at least 1")
    elif points is not None:
        raise ValueError(f"{what}: points on a cell that is not a check or a task; an exercise's check has the points")

    _check_source(cell, what, graded)
    for region, owner in REGIONS.items():
        begins, ends = (cell.source.count(f"{word} {region}") for word in ("BEGIN", "END"))
        if begins + ends and kind != owner:
            raise ValueError(f"{what}: a {region} region outside a cell tagged {owner}: students would get it")
        if begins != ends:
            raise ValueError(f"{what}: {begins} BEGIN {region} and {ends} END {region}; each BEGIN needs its END")
    if kind == "exercise" and "BEGIN SOLUTION" not in cell.source:
        raise ValueError(f"{what}: an exercise without ### BEGIN SOLUTION and ### END SOLUTION: nothing to clear")
    lines = len(cell.source.split("\n"))
    if cell.cell_type == "code" and lines > MAX_LINES:
        raise ValueError(f"{what}: {lines} lines; a code cell has at most {MAX_LINES}: split it")
    if cell.cell_type == "code" and lines > MAX_SHOWN and not {*GRADED, "hide-input", "setup"} & {*tags}:
        how = "fold it (hide-input), split it, or move it into the package"
        raise ValueError(f"{what}: it shows {lines} lines, of {MAX_SHOWN} at most: {how}")
    return what


def _check_source(cell, what: str, graded: bool) -> None:
    """Refuse what would build, and be wrong: a region that nbgrader does not see, a lost fence, broken Python."""
    if cell.cell_type == "markdown" and (found := SILENT.search(cell.source)):
        raise ValueError(f"{what}: {found[0]!r} is a picture without alt text; say in words what it shows")
    for line in cell.source.split("\n"):
        if graded and LIKE_A_MARK[cell.cell_type].search(line) and line.strip() not in MARKS:
            allowed = ", ".join(f"### BEGIN {region}" for region in REGIONS)
            raise ValueError(f"{what}: {line.strip()!r} looks like a region; allowed: {allowed}, each with its END")
        if line.startswith("```{"):
            raise ValueError(f"{what}: {line!r} inside it: a code cell above is not closed, or this one is misspelt")
    if cell.cell_type == "code" and "raises-exception" not in cell.metadata.get("tags", []):
        try:
            source = TransformerManager().transform_cell(cell.source)  # magics become calls
            compile(source, "cell", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        except (SyntaxError, ValueError) as error:
            raise ValueError(f"{what}: not Python: {str(error).replace('(cell, ', '(')}") from None


def _check_order(cells: list) -> None:
    """An exercise is followed by its check before the next exercise; one cell takes the parameters."""
    waiting = None
    for cell in cells:
        kind = _kind(cell)
        if kind == "exercise" and waiting:
            break
        waiting = cell.id if kind == "exercise" else None if kind == "check" else waiting
    if waiting:
        raise ValueError(f"cell {waiting!r}: an exercise without a check; put one right below it")
    if sum("parameters" in cell.metadata.get("tags", []) for cell in cells) > 1:
        raise ValueError("two cells are tagged parameters; papermill fills in one")
