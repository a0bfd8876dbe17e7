"""Where a student stands: run their own copies of labs and read what the checks say: ``python -m tools.check LAB ...``.

    lab01-count: 6 of 11 points by the checks that you see

      passed       count-minigpt    3 of 3
      not yet      count-llama      3 of 4   no num_key_value_heads: ...
      not written  static-buckets   0 of 4

The copy in work/ is read and never changed. It runs from top to bottom as it was saved, with the checks as the course
has them; an error stops nothing. Points are those of the checks that students see: the grader has more cases.
Exit code 0: every check passed; 1: something is left to do; 2: there is nothing to run.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import textwrap
from dataclasses import dataclass, replace
from pathlib import Path

from nbformat import NotebookNode
from tqdm import tqdm

from minigpt.place import WORK
from tools import ROOT
from tools.execute import WatchedKernel, why_dead
from tools.grading.notebook import grade_id, read, solution
from tools.grading.repair import repair

PASSED, NOT_YET, NOT_WRITTEN, BY_A_PERSON = "passed", "not yet", "not written", "for a person"
SECONDS = 600  # that one cell may take
WIDTH = 120
ANSWER = "*Your answer:*"  # what the build writes below a task


@dataclass(frozen=True)
class Line:
    """How one exercise stands. ``points`` is None where a person gives them."""

    name: str
    status: str
    points: float | None
    out_of: float
    why: str = ""


def find(root: Path, names: list[str]) -> list[str]:
    """The labs in work/ that ``names`` ask for, as lab01 or by their whole name; without names, those somebody began.

    Raises ValueError for a name that is none, and where there is no work/ yet.
    """
    labs = sorted(path.parent.name for path in (root / "labs").glob("*/*.ipynb"))
    if not labs:
        raise ValueError("there are no labs; make them with: make notebooks")
    for name in names:
        if not any(name in (lab, lab.split("-")[0]) for lab in labs):
            raise ValueError(f"LAB is {name!r}; there is {', '.join(labs)}")
    chosen = [lab for lab in labs if not names or {lab, lab.split("-")[0]} & set(names)]
    for lab in chosen:
        if not _copy(root, lab).is_file():
            raise ValueError(f"{WORK}/labs/{lab}/{lab}.ipynb is not there; `make lab` makes it")
    return chosen if names else [lab for lab in chosen if begun(root, lab)]


def _copy(root: Path, lab: str) -> Path:
    return root / WORK / "labs" / lab / f"{lab}.ipynb"


def _released(root: Path, lab: str):
    return read(root / "labs" / lab / f"{lab}.ipynb")


def begun(root: Path, lab: str) -> bool:
    """Whether an answer in the student's copy differs from the empty one, or the copy is broken."""
    try:
        mine, given = (
            [cell.source.strip() for cell in notebook.cells if _written_here(cell)]
            for notebook in (read(_copy(root, lab)), _released(root, lab))
        )
    except ValueError:
        return True
    return mine != given


def _written_here(cell) -> bool:
    return cell.id.endswith("-answer") or bool(grade_id(cell) and solution(cell))


def stand(root: Path, lab: str) -> list[Line]:
    """Run the student's copy of ``lab`` and return how each exercise stands.

    Raises ValueError for a copy that is not this lab's notebook.
    """
    release = _released(root, lab)
    notebook, _ = repair(read(_copy(root, lab)), release)
    as_released = {name: cell.source for cell in release.cells if (name := grade_id(cell))}
    for cell in notebook.cells:
        if (name := grade_id(cell)) and not solution(cell):  # an edited check says nothing
            cell.source = as_released[name]
    dead = execute(notebook, _copy(root, lab).parent, lab)
    return read_lines(notebook, as_released, dead)


def execute(notebook, folder: Path, lab: str) -> str:
    """Run every cell of ``notebook`` in ``folder``, errors or not. Returns why the kernel died, or nothing."""
    from nbclient import NotebookClient
    from nbclient.exceptions import CellTimeoutError, DeadKernelError

    cells = sum(cell.cell_type == "code" for cell in notebook.cells)
    with tqdm(total=cells, desc=lab, unit="cell", disable=None, leave=False, dynamic_ncols=True) as bar:
        client = NotebookClient(
            notebook, allow_errors=True, timeout=SECONDS, kernel_name="python3", kernel_manager_class=WatchedKernel,
            resources={"metadata": {"path": str(folder)}}, on_cell_executed=lambda **_: bar.update(),
        )  # fmt: skip
        try:
            client.execute(stderr=subprocess.DEVNULL)  # what a kernel says of itself
        except DeadKernelError:
            return why_dead(WatchedKernel.exit_code)
        except CellTimeoutError:
            return f"stopped: one cell took more than {SECONDS // 60} minutes"
    return ""


def read_lines(notebook, as_released: dict[str, str], dead: str = "") -> list[Line]:
    """How each check and each written answer of an executed ``notebook`` stands."""
    lines: list[Line] = []
    exercises: dict[str, NotebookNode] = {}  # since the last check
    answers = {cell.id: cell.source.replace(ANSWER, "").strip() for cell in notebook.cells if cell.cell_type != "code"}
    for cell in notebook.cells:
        name = grade_id(cell)
        kind = cell.metadata.get("nbgrader", {})
        if name and solution(cell) and not kind.get("grade"):
            exercises[name] = cell
        elif name and kind.get("task"):
            written = "" if answers.get(f"{name}-answer") else NOT_WRITTEN
            lines.append(Line(name, BY_A_PERSON, None, kind["points"], written))
        elif name and kind.get("grade") and cell.cell_type == "code":
            line = _line(name, cell, exercises, as_released, dead)
            above = any(other.status in (NOT_YET, NOT_WRITTEN) for other in lines)
            if line.status == NOT_YET and not exercises and above and _ename(cell) != "Wrong":  # a run, not an answer
                line = replace(line, why="it needs what is above")
            lines.append(line)
            exercises = {}
    return lines


def _line(check: str, cell, exercises: dict, as_released: dict[str, str], dead: str) -> Line:
    """How the exercises that one check looks at stand."""
    names = ", ".join(exercises) or check
    points, why = verdict(cell)
    out_of = cell.metadata["nbgrader"]["points"]
    if points == out_of:
        return Line(names, PASSED, points, out_of)
    if any(exercise.source.strip() == as_released[name].strip() for name, exercise in exercises.items()):
        return Line(names, NOT_WRITTEN, points, out_of)
    broken = [error for exercise in exercises.values() if (error := _error(exercise))]
    return Line(
        names,
        NOT_YET,
        points,
        out_of,
        f"its cell stops: {broken[0]}" if broken else why or dead or "it was not reached",
    )


def verdict(cell) -> tuple[float, str]:
    """An executed check's points, and why they are not all: nbgrader's rule, as nbgrader_config.py has it."""
    out_of = float(cell.metadata["nbgrader"]["points"])
    if error := _error(cell):
        return 0.0, error
    if cell.get("execution_count") is None:
        return 0.0, ""  # it was not reached
    results = [output.data.get("text/plain", "") for output in cell.outputs if output.output_type == "execute_result"]
    numbers = [float(text) for text in results if re.fullmatch(r"\d+(\.\d+)?", text)]
    if not numbers:
        return out_of, ""
    printed = "".join(output.text for output in cell.outputs if output.output_type == "stream")
    said = re.sub(r"\n  (?! )", " ", printed.partition("\n")[2])  # below "3 of 4 points", and not wrapped
    return min(numbers), first_sentence(said)


def _ename(cell) -> str | None:
    """The class of the error that a cell ended in."""
    return next((output.ename for output in cell.outputs if output.output_type == "error"), None)


def _error(cell) -> str:
    """The first sentence of the error that a cell ended in, if it did."""
    for output in cell.outputs:
        if output.output_type == "error":
            said = first_sentence(output.evalue)
            return said if output.ename == "Wrong" else f"{output.ename}: {said}" if said else output.ename
    return ""


def first_sentence(text: str) -> str:
    """``text`` up to its first line end, or to the first full stop before a capital letter."""
    return re.split(r"\n|(?<=[.?!]) (?=[A-Z])", text.strip(), maxsplit=1)[0].strip()


def show(lab: str, lines: list[Line]) -> str:
    """How a lab stands, as a table for the terminal."""
    by_checks = [line for line in lines if line.points is not None]
    earned, out_of = (sum(getattr(line, name) for line in by_checks) for name in ("points", "out_of"))
    by_hand = sum(line.out_of for line in lines if line.points is None)
    more = f"; a person gives {by_hand:g} more" if by_hand else ""
    head = f"{lab}: {earned:g} of {out_of:g} points by the checks that you see{more}"
    names, statuses = (max(len(getattr(line, field)) for line in lines) for field in ("name", "status"))
    rows = [head]
    for line in lines:
        points = f"{'-' if line.points is None else f'{line.points:g}'} of {line.out_of:g}"
        start = f"  {line.status:{statuses}}  {line.name:{names}}  {points:>8}  "
        rows += textwrap.wrap(start + line.why, WIDTH, subsequent_indent=" " * len(start), drop_whitespace=True)
    return "\n".join(row.rstrip() for row in rows)


def main(argv: list[str] | None = None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.check", description=__doc__.splitlines()[0])
    parser.add_argument("labs", nargs="*", metavar="LAB", help="as lab01; without one, every lab that you have begun")
    names = parser.parse_args(argv).labs
    left = False
    try:
        labs = find(root, names)
        if not labs:
            print(f"No lab in {WORK}/ has an answer yet. Start with {WORK}/labs/, in `make lab`.")
        for lab in labs:
            try:
                lines = stand(root, lab)
            except ValueError as error:  # its file is no notebook, or another: the other labs still run
                print(f"check: {WORK}/labs/{lab}: {error}", file=sys.stderr)
                left = True
                continue
            print(show(lab, lines), flush=True)
            left |= any(line.points is not None and line.status != PASSED for line in lines)
    except (ValueError, OSError) as error:
        print(f"check: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("check: stopped", file=sys.stderr)
        return 130
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
