"""Which notebook of a submission is graded: the one that was worked on, never an untouched copy beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from nbformat import NotebookNode

from tools.grading.code import defined, squeezed
from tools.grading.files import CHECKPOINTS, MOST_BYTES, File, said
from tools.grading.notebook import grade_id, load, solution
from tools.grading.script import load_script

UNREAD = (".json", ".txt", "")  # endings under which a notebook is looked for where its contents say so


@dataclass
class Candidate:
    """A notebook that may be the submission; ``work`` has the texts of the cells in which somebody wrote."""

    file: File
    notebook: NotebookNode
    notes: list[str]
    work: frozenset[str]
    evidence: int  # how many exercises of this lab are in it, less those of others


def choose(files: list[File], name: str, release: NotebookNode) -> tuple[Candidate, list[str]]:
    """The notebook to grade, and a sentence on each thing that whoever reads the grade must know.

    Raises ValueError, one sentence, where there is none, where several were worked on, and for the reason why the
    only one cannot be read.
    """
    untouched: list[Candidate] = []
    problems: list[str] = []
    for group in _groups(files, release):
        read: list[Candidate] = []
        for file, loader in group:
            try:
                notebook, notes = loader(file)
            except ValueError as error:
                problems.append(str(error))
                continue
            read.append(Candidate(file, notebook, notes, _work(notebook, release), _evidence(notebook, release)))
        read.sort(key=lambda one: (one.file.path.name != name, len(one.file.path.parts), one.file.path))
        worked = [one for one in read if one.work and one.evidence > 0]
        most = [one for one in worked if not any(one.work < other.work for other in worked)]
        if len({one.work for one in most}) > 1:
            raise ValueError(
                f"{most[0].file.name} and {most[1].file.name} were both worked on; "
                "hand in one notebook with all answers"
            )
        if most:
            return most[0], _said(most[0], name, read + untouched, problems)
        untouched += read
    if problems:  # what cannot be read may be what was worked on
        raise ValueError(problems[0])
    if not untouched:
        others = ", ".join(file.name for file in files[:3]) + " …" * (len(files) > 3)
        raise ValueError(f"there is no notebook in its folder{f', only {others}' if files else ''}; expected {name}")
    best = max(untouched, key=lambda one: one.evidence > 0)
    return best, _said(best, name, untouched, problems)


def _groups(files: list[File], release: NotebookNode) -> Iterator[list[tuple[File, Callable]]]:
    """Notebooks; notebooks as Jupyter saved them before; scripts. A later group counts if none before has work."""
    named = [file for file in files if ".ipynb" in file.path.name.lower() or _inside_a_notebook(file)]
    saved = [file for file in named if CHECKPOINTS in file.path.parts]
    yield [(file, load) for file in named if file not in saved]
    yield [(file, load) for file in saved]
    yield [
        (file, lambda file: (load_script(file, release), [f"{file.name} is a script; its cells were brought back"]))
        for file in files
        if file.path.suffix == ".py" and _names_an_answer(file, release)
    ]


def _inside_a_notebook(file: File) -> bool:
    if file.path.suffix.lower() not in UNREAD or file.size > MOST_BYTES:
        return False
    try:
        return b'"nbformat"' in file.read()
    except ValueError:
        return False


def _names_an_answer(file: File, release: NotebookNode) -> bool:
    try:
        text = file.read().decode("utf8", "replace").replace("\r", "\n")
    except ValueError:
        return False
    answers = [defined(cell.source) for cell in release.cells if grade_id(cell) and solution(cell)]
    return any(f"def {name}" in text or f"class {name}" in text for names in answers for name in names)


def _work(notebook: NotebookNode, release: NotebookNode) -> frozenset[str]:
    """The texts of cells that are not in the release. Parameters and what Colab's copy opens with are no work."""
    given = {squeezed(cell.source) for cell in release.cells} | {""}
    opening = {cell.id for cell in release.cells if {"parameters", "bootstrap"} & {*cell.metadata.get("tags", [])}}
    opening |= {"title"}
    mine = [cell for cell in notebook.cells if cell.id not in opening]
    mine = [c for c in mine if not {"parameters", "bootstrap", "injected-parameters"} & {*c.metadata.get("tags", [])}]
    return frozenset(squeezed(cell.source) for cell in mine) - given


def _evidence(notebook: NotebookNode, release: NotebookNode) -> int:
    names = {grade_id(cell) for cell in notebook.cells} - {None}
    texts = {squeezed(cell.source) for cell in notebook.cells}
    functions = set().union(*(defined(cell.source) for cell in notebook.cells if cell.cell_type == "code"))
    wanted = [cell for cell in release.cells if grade_id(cell)]
    found = [
        cell
        for cell in wanted
        if grade_id(cell) in names
        or squeezed(cell.source) in texts
        or (solution(cell) and defined(cell.source) & functions)
    ]
    return len(found) - len(names - {grade_id(cell) for cell in wanted})


def _said(chosen: Candidate, name: str, read: list[Candidate], problems: list[str]) -> list[str]:
    notes = [f"{chosen.file.name} was taken for {name}"] if str(chosen.file.path) != name else []
    notes += chosen.notes
    others = [one for one in read if one is not chosen]
    if others:
        why = [f"{said(one.file.path)} ({_why(one, chosen)})" for one in others[:5]]
        notes.append(f"not used: {', '.join(why)}" + f" and {len(others) - 5} more" * (len(others) > 5))
    return notes + [f"not used: {problem}" for problem in problems[:5]]


def _why(one: Candidate, chosen: Candidate) -> str:
    if one.evidence <= 0:
        return "another notebook"
    return "nothing was written in it" if not one.work else "all that is in it is in the other, too"
