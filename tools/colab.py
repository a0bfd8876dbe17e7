"""Notebooks that carry the package, for Colab and for wherever no repository is reachable: build/colab/*.ipynb.

    python -m tools.colab

The package is a wheel, as base64 text in the notebook's second cell, which unpacks it and puts it on ``sys.path``.
pip is not asked, so torch and numpy stay as they are. Labs are the student versions.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import os
import sys
import tempfile
from pathlib import Path

import nbformat
from flit_core import buildapi

from tools import ROOT, figures, links, opening, settings, write_whole
from tools.build import write

EPOCH = "315532800"  # 1980-01-01, the oldest date a zip file knows: the same package gives the same bytes


def wheel(root: Path) -> bytes:
    """The package of the course in ``root``, as a wheel."""
    before = os.environ.get("SOURCE_DATE_EPOCH")
    os.environ["SOURCE_DATE_EPOCH"] = before or EPOCH
    try:
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(root):
            return Path(folder, buildapi.build_wheel(folder)).read_bytes()
    finally:
        if before is None:
            del os.environ["SOURCE_DATE_EPOCH"]


def carry(notebook, package: bytes, versions: dict[str, str], folder: Path):
    """A notebook of the build that lies in ``folder``, with its figures inside and two opening cells of its own."""
    ledger = notebook.metadata["ledger"]
    text = base64.encodebytes(package).decode().strip()  # 76 characters a line
    cells = {
        "title": opening.title_cell(ledger, on_colab=""),
        "bootstrap": opening.unpack_cell(ledger, text, versions),
    }
    notebook.cells = [cells.get(cell.id, cell) for cell in notebook.cells if cell.id != "next"]
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = figures.carried(links.unlinked(cell.source), folder)  # there is nothing beside it
    return notebook


def pack(root: Path) -> list[Path]:
    """Write build/colab/; returns the paths. Raises ValueError if there is no notebook to pack."""
    sources = [*sorted(root.glob("lessons/[0-9]*.ipynb")), *sorted(root.glob("labs/*/*.ipynb"))]
    if not sources:
        raise ValueError("no notebooks in lessons/ and labs/: run `make notebooks` first")
    package, versions = wheel(root), settings.pins(root)
    written = []
    for source in sources:
        written.append(root / "build" / "colab" / source.name)
        try:
            packed = write(carry(nbformat.read(source, as_version=4), package, versions, source.parent))
        except Exception as error:  # nbformat raises many kinds, and a ledger may hold anything
            problem = " ".join(str(error).split())[:200]
            raise ValueError(f"{source} is not a notebook of the build: {type(error).__name__}: {problem}") from None
        write_whole(written[-1], packed)
    return written


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    argparse.ArgumentParser(prog="python -m tools.colab", description="Pack the notebooks for Colab.").parse_args(
        arguments
    )
    try:
        written = pack(root)
    except (ValueError, OSError) as error:
        print(f"tools.colab: {error}", file=sys.stderr)
        return 1
    for path in written:
        print(f"wrote {path.relative_to(root)} ({path.stat().st_size / 1e6:.1f} MB)")
    print("Upload one at https://colab.research.google.com: File, Upload notebook.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
