"""Make the notebooks from their text: content/*.md -> index, lessons/ and figures, solutions/, (nbgrader) labs/.

    python -m tools.build            write what changed
    python -m tools.build --check    write nothing; list what is stale and exit with 1

The same text always gives the same bytes. Nothing is paired: text goes in, notebooks come out, and a notebook
that somebody has run is not overwritten without --force. How to write the text: content/README.md.
"""

from __future__ import annotations

import argparse
import io
import logging
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import nbformat
from nbformat.v4 import new_markdown_cell, new_notebook

from minigpt.memory.collector import at_rest
from tools import ROOT, cells, claims, figures, glossary, index, opening, prose, settings, write_whole
from tools.links import Neighbours
from tools.texts import Text, documents, read

GLOSSARY = "content/glossary.md"
KERNEL = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def build(root: Path) -> dict[str, str]:
    """Every notebook and figure that the course in ``root`` generates, as text, by its path relative to ``root``.

    Raises ValueError naming the file for a text that breaks a rule.
    """
    address, versions = settings.repository(root), settings.pins(root)
    texts = []
    for document in documents(root):
        with _named(document.path):
            texts.append(read(document, root, versions))
    has_map = (root / index.TEXT).exists()
    waits = {text.document: text.ledger["after"] for text in texts if "after" in text.ledger}
    around = Neighbours({text.document: text.ledger["title"] for text in texts}, has_map, waits)
    with _named(GLOSSARY):
        opening_words, terms = glossary.parse(_glossary(root))
        linker = glossary.Linker(terms)
    notebooks, drawn = {}, figures.Figures()
    for text in texts:
        with _named(text.document.path):
            notebooks[text.document.notebook] = convert(text, root, around, linker, drawn, address, versions)
    labs = {Path(path).stem: text for path, text in notebooks.items() if path.startswith("solutions/")}
    _refuse_strays(root)
    student = release(labs)
    notebooks |= {f"labs/{name}/{name}.ipynb": text for name, text in student.items()}
    if terms:
        with _named(GLOSSARY):
            linker.refuse_unused()
            lessons = {text.document.number: text.document for text in texts if not text.document.is_lab}
            page = glossary.cells(opening_words, linker, lessons, has_map)
        budget = {"minutes": {"cpu": 1, "gpu": 1}, "memory_gb": {"ram": 1, "vram": 0}}  # `make run` makes its page
        ledger = {"kind": "glossary", "source": GLOSSARY, "title": "Glossary", **budget}
        notebooks[glossary.PAGE] = write(new_notebook(cells=page, metadata={**KERNEL, "ledger": ledger}))
    for alone in (claims, index):  # each sees what was built before it
        with _named(alone.TEXT):
            if made := alone.make(root, notebooks):
                page, ledger = made
                notebooks[alone.PAGE] = write(new_notebook(cells=page, metadata={**KERNEL, "ledger": ledger}))
    return notebooks | drawn.files


def convert(
    text: Text, root: Path, around: Neighbours, linker, drawn: figures.Figures, address: str | None,
    versions: dict[str, str],
) -> str:  # fmt: skip
    """One text -> one notebook, as text; for a lab, the instructor's version. ``drawn`` takes the figures it shows."""
    document, name = text.document, text.document.path.stem
    body = cells.expand(text.cells, name, graded=document.is_lab)
    if any(cell.cell_type == "markdown" and re.match(r"# ", cell.source) for cell in body):
        raise ValueError("a heading with one #; the title comes from the front matter, so start with ##")
    markdown = [cell for cell in body if cell.cell_type == "markdown"]
    offered = {"figure": drawn.on(document.page)}
    words = prose.filled([cell.source for cell in markdown], text.source, root / document.numbers, offered)
    words = linker.linked(around.linked(document, words), document.page)
    for cell, source in zip(markdown, words, strict=True):
        cell.source = source
    ledger = text.ledger | {"kind": "lab" if document.is_lab else "lesson", "source": document.path.as_posix()}
    if document.is_lab:
        ledger["points"] = sum(cell.metadata.get("nbgrader", {}).get("points", 0) for cell in body)
    title = opening.title_cell(ledger, opening.way_to_colab(document.page, address), around.header(document))
    install = opening.install_cell(ledger, address, versions)
    foot = [new_markdown_cell(go_on, id="next")] if (go_on := around.footer(document)) else []
    return write(new_notebook(cells=[title, install, *body, *foot], metadata={**KERNEL, "ledger": ledger}))


@contextmanager
def _named(path: Path | str) -> Iterator[None]:
    """Whatever is refused inside is refused with the file's name."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _glossary(root: Path) -> str:
    path = root / GLOSSARY
    return path.read_text(encoding="utf-8-sig") if path.exists() else ""


def write(notebook) -> str:
    """A notebook as text: valid, keys sorted, one newline at the end."""
    nbformat.validate(notebook)
    return nbformat.writes(notebook, indent=1, sort_keys=True, ensure_ascii=False).rstrip("\n") + "\n"


def release(labs: dict[str, str]) -> dict[str, str]:
    """nbgrader's student version of each lab, by the lab's name: solutions, hidden tests and mark schemes cleared."""
    if not labs:
        return {}
    from nbgrader.converters import GenerateAssignment
    from nbgrader.coursedir import CourseDirectory
    from traitlets.config import PyFileConfigLoader

    said = io.StringIO()  # what nbgrader has to say about a failure
    log = logging.getLogger("tools.build.nbgrader")
    log.propagate, log.handlers = False, [logging.StreamHandler(said)]
    config = PyFileConfigLoader("nbgrader_config.py", path=str(ROOT)).load_config()
    config.SaveCells.enabled = False  # grading fills the gradebook, building does not
    student = {}
    with tempfile.TemporaryDirectory() as folder:
        config.CourseDirectory.root = os.path.realpath(folder)
        for name, text in labs.items():
            source = Path(folder, "solutions", name, f"{name}.ipynb")
            source.parent.mkdir(parents=True)
            source.write_text(text, encoding="utf8")
            config.CourseDirectory.assignment_id = name
            course = CourseDirectory(config=config)
            try:
                GenerateAssignment(coursedir=course, config=config, no_database=True, log=log).start()
            except Exception:
                raise ValueError(f"content/labs/{name}.md: nbgrader refuses it: {said.getvalue().strip()}") from None
            made = Path(folder, "labs", name, f"{name}.ipynb").read_text(encoding="utf8")
            student[name] = write(nbformat.reads(made, as_version=4))
    return student


def _refuse_strays(root: Path) -> None:
    """nbgrader hands every file beside a source notebook to students, whatever it is."""
    for path in sorted((root / "solutions").glob("*/**/*")):
        if path.is_file() and path.suffix != ".ipynb" and ".ipynb_checkpoints" not in path.parts:
            raise ValueError(f"{path.relative_to(root)}: move it away; nbgrader would release it to students")


def stale(root: Path, notebooks: dict[str, str]) -> list[str]:
    """The notebooks and figures that are missing, differ from their text, or have no text."""
    places = (index.PAGE, "lessons/*.ipynb", f"{figures.FOLDER}/*.svg", "solutions/*/*.ipynb", "labs/*/*.ipynb")
    existing = [path for place in places for path in root.glob(place)]
    paths = {path.relative_to(root).as_posix() for path in existing} | set(notebooks)
    return sorted(path for path in paths if _read(root / path) != notebooks.get(path))


def _read(path: Path) -> str | None:
    return path.read_bytes().decode("utf8") if path.is_file() else None


def _replaceable(path: Path) -> bool:
    """Whether nothing is lost with the file: it is missing, or as some build wrote it and never run."""
    try:
        if path.suffix == ".svg":
            return figures.is_made(path)
        found = nbformat.read(path, as_version=4)
        run = any(cell.get("outputs") or cell.get("execution_count") for cell in found.cells)
        return found.metadata["ledger"].get("source") is not None and not run
    except FileNotFoundError:
        return True
    except Exception:  # not a notebook, or none of the build's
        return False


def update(root: Path, notebooks: dict[str, str], force: bool = False) -> list[str]:
    """Bring the files up to date; returns the paths that changed. Nothing is half-written.

    Raises ValueError, before anything is written, if a file to be replaced holds somebody's work.
    """
    changes = stale(root, notebooks)
    for path in changes:
        if not force and not _replaceable(root / path):
            raise ValueError(f"{path} was run or made by hand: move it away, or add --force to lose it")
    for path in changes:
        if path in notebooks:
            write_whole(root / path, notebooks[path])
        else:
            (root / path).unlink()
    return changes


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.build", description="Make the notebooks from content/.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a notebook is stale")
    parser.add_argument("--force", action="store_true", help="overwrite notebooks that somebody has run")
    options = parser.parse_args(arguments)
    try:
        with at_rest():  # a collection goes through all that the predictions hold, and finds little
            notebooks = build(root)
        if options.check:
            changes = stale(root, notebooks)
            for path in changes:
                print(f"stale: {path}", file=sys.stderr)
            if changes:
                print("Run `make notebooks` and commit what it changes.", file=sys.stderr)
            return 1 if changes else 0
        changes = update(root, notebooks, options.force)
    except (ValueError, OSError) as error:
        print(f"tools.build: {error}", file=sys.stderr)
        return 1
    for path in changes:
        print(f"{'wrote' if path in notebooks else 'removed'} {path}")
    drawn = sum(path.endswith(".svg") for path in notebooks)
    print(f"{len(notebooks) - drawn} notebooks, {drawn} figures, {len(changes)} changed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
