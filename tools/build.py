"""Make the notebooks from their text: content/*.md -> index, lessons/, solutions/, (nbgrader) labs/.

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
from dataclasses import dataclass
from math import inf
from pathlib import Path

import jupytext
import nbformat
from nbformat.v4 import new_notebook

from tools import ROOT, cells, index, opening, prose, settings, write_whole

NAMES = {"lessons": re.compile(r"\d\d-[a-z0-9-]+"), "labs": re.compile(r"lab\d\d-[a-z0-9-]+")}
FRONT_MATTER = ("title", "read", "minutes", "memory_gb", "colab")
KERNEL = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


@dataclass(frozen=True)
class Document:
    """One text: where it lies, and where its notebook goes (both relative to the course's folder)."""

    path: Path

    @property
    def is_lab(self) -> bool:
        return self.path.parent.name == "labs"

    @property
    def numbers(self) -> Path:
        """The Python that defines what the text's placeholders name, if the text needs any."""
        return self.path.with_suffix(".numbers.py")

    @property
    def notebook(self) -> str:
        name = self.path.stem
        return f"solutions/{name}/{name}.ipynb" if self.is_lab else f"lessons/{name}.ipynb"


def documents(root: Path) -> list[Document]:
    """The course's texts, in order.

    Raises ValueError for a text whose name is not of the form NN-name.md, and for a file of numbers without its text.
    """
    found = []
    for kind, pattern in NAMES.items():
        for path in sorted((root / "content" / kind).glob("*.md")):
            if not pattern.fullmatch(path.stem):
                form = "NN-name.md" if kind == "lessons" else "labNN-name.md"
                raise ValueError(f"{path.relative_to(root)}: the name must be {form}, in lower case")
            found.append(Document(path.relative_to(root)))
    strays = set(root.glob("content/*/*.numbers.py")) - {root / document.numbers for document in found}
    for path in sorted(strays):
        raise ValueError(f"{path.relative_to(root)}: there is no text of this name")
    return found


def build(root: Path) -> dict[str, str]:
    """Every generated notebook of the course in ``root``, as text, by its path relative to ``root``.

    Raises ValueError naming the file for a text that breaks a rule.
    """
    address, versions = settings.repository(root), settings.pins(root)
    notebooks = {}
    for document in documents(root):
        try:
            notebooks[document.notebook] = convert(document, root, address, versions)
        except ValueError as error:
            raise ValueError(f"{document.path}: {error}") from None
    labs = {Path(path).stem: text for path, text in notebooks.items() if path.startswith("solutions/")}
    _refuse_strays(root)
    student = release(labs)
    notebooks |= {f"labs/{name}/{name}.ipynb": text for name, text in student.items()}
    try:
        if made := index.make(root, notebooks):
            page, ledger = made
            notebooks[index.PAGE] = write(new_notebook(cells=page, metadata={**KERNEL, "ledger": ledger}))
    except ValueError as error:
        raise ValueError(f"{index.TEXT}: {error}") from None
    return notebooks


def convert(document: Document, root: Path, address: str | None, versions: dict[str, str]) -> str:
    """One text -> one notebook, as text; for a lab, the instructor's version."""
    text = (root / document.path).read_text(encoding="utf-8-sig")  # an editor may have put a mark in front
    try:
        source = jupytext.reads(text, fmt="md:myst")
    except Exception as error:  # jupytext and yaml raise many kinds, all about the text
        raise ValueError(f"not valid MyST: {' '.join(str(error).split())}") from None
    ledger = _front_matter(dict(source.metadata), versions)
    body = cells.expand(source.cells, document.path.stem, graded=document.is_lab)
    if any(cell.cell_type == "markdown" and re.match(r"# ", cell.source) for cell in body):
        raise ValueError("a heading with one #; the title comes from the front matter, so start with ##")
    markdown = [cell for cell in body if cell.cell_type == "markdown"]
    for cell, words in zip(markdown, prose.filled([c.source for c in markdown], text, root / document.numbers)):
        cell.source = words
    ledger |= {"kind": "lab" if document.is_lab else "lesson", "source": document.path.as_posix()}
    if document.is_lab:
        ledger["points"] = sum(cell.metadata.get("nbgrader", {}).get("points", 0) for cell in body)
    path = f"labs/{document.path.stem}/{document.path.stem}.ipynb" if document.is_lab else document.notebook
    title = opening.title_cell(ledger, opening.way_to_colab(path, address))
    install = opening.install_cell(ledger, address, versions)
    return write(new_notebook(cells=[title, install, *body], metadata={**KERNEL, "ledger": ledger}))


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


def _front_matter(given: dict, versions: dict[str, str]) -> dict:
    """The checked front matter, complete. Raises ValueError naming the entry."""
    given = {key: value for key, value in given.items() if key not in ("jupytext", "kernelspec")}
    for key in given:
        if key not in FRONT_MATTER:
            raise ValueError(f"front matter: {key!r}; allowed: {', '.join(FRONT_MATTER)}")
    if not isinstance(given.get("title"), str) or not given["title"].strip():
        raise ValueError(f"front matter: title is {given.get('title')!r}; it must be text")
    for key, parts in {"minutes": ("cpu", "gpu"), "memory_gb": ("ram", "vram")}.items():
        value = given.get(key)
        if not isinstance(value, dict) or set(value) != set(parts):
            raise ValueError(f"front matter: {key} is {value!r}; write {key}: {{{parts[0]}: N, {parts[1]}: N}}")
        for part, number in value.items():
            if isinstance(number, bool) or not isinstance(number, (int, float)) or not 0 <= number < inf:
                raise ValueError(f"front matter: {key} {part} is {number!r}; it must be a number of at least 0")
    colab = given.get("colab", [])
    if not isinstance(colab, list):
        raise ValueError(f"front matter: colab is {colab!r}; it must be a list of packages")
    for name in colab:
        if not isinstance(name, str) or settings.normal(name) not in versions or name in ("torch", "numpy"):
            raise ValueError(
                f"front matter: colab has {name!r}; allowed: packages in constraints.txt, not torch or numpy"
            )
    return {**given, "colab": colab}


def _refuse_strays(root: Path) -> None:
    """nbgrader hands every file beside a source notebook to students, whatever it is."""
    for path in sorted((root / "solutions").glob("*/**/*")):
        if path.is_file() and path.suffix != ".ipynb" and ".ipynb_checkpoints" not in path.parts:
            raise ValueError(f"{path.relative_to(root)}: move it away; nbgrader would release it to students")


def stale(root: Path, notebooks: dict[str, str]) -> list[str]:
    """The notebooks that are missing, differ from their text, or have no text."""
    places = (index.PAGE, "lessons/*.ipynb", "solutions/*/*.ipynb", "labs/*/*.ipynb")
    existing = [path for place in places for path in root.glob(place)]
    paths = {path.relative_to(root).as_posix() for path in existing} | set(notebooks)
    return sorted(path for path in paths if _read(root / path) != notebooks.get(path))


def _read(path: Path) -> str | None:
    return path.read_bytes().decode("utf8") if path.is_file() else None


def _replaceable(path: Path) -> bool:
    """Whether nothing is lost with the file: it is missing, or as some build wrote it and never run."""
    try:
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
    print(f"{len(notebooks)} notebooks, {len(changes)} changed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
