"""The course's texts: which there are, where their notebooks go, and what each says of itself in its front matter."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import inf
from pathlib import Path

import jupytext

from tools import settings

NAMES = {"lessons": re.compile(r"\d\d-[a-z0-9-]+"), "labs": re.compile(r"lab\d\d-[a-z0-9-]+")}
FRONT_MATTER = ("title", "read", "minutes", "memory_gb", "colab", "alone", "after")


@dataclass(frozen=True)
class Document:
    """One text: where it lies, and where its notebook goes (both relative to the course's folder)."""

    path: Path

    @property
    def is_lab(self) -> bool:
        return self.path.parent.name == "labs"

    @property
    def number(self) -> str:
        """Its two digits. A lab has those of its lesson."""
        return re.sub(r"^lab", "", self.path.stem)[:2]

    @property
    def numbers(self) -> Path:
        """The Python that defines what the text's placeholders name, if the text needs any."""
        return self.path.with_suffix(".numbers.py")

    @property
    def notebook(self) -> str:
        """What the build makes of it: for a lab, the instructor's version."""
        name = self.path.stem
        return f"solutions/{name}/{name}.ipynb" if self.is_lab else f"lessons/{name}.ipynb"

    @property
    def page(self) -> str:
        """Where a reader finds it: for a lab, the student's version. Links lead there."""
        return re.sub(r"^solutions/", "labs/", self.notebook)


@dataclass(frozen=True)
class Text:
    """What a document says: all of it as it stands, its cells as jupytext reads them, and its front matter."""

    document: Document
    source: str
    cells: list
    ledger: dict


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


def read(document: Document, root: Path, versions: dict[str, str]) -> Text:
    """One text. Raises ValueError for what is not MyST, and for a wrong front matter."""
    source = (root / document.path).read_text(encoding="utf-8-sig")  # an editor may have put a mark in front
    try:
        notebook = jupytext.reads(source, fmt="md:myst")
    except Exception as error:  # jupytext and yaml raise many kinds, all about the text
        raise ValueError(f"not valid MyST: {' '.join(str(error).split())}") from None
    return Text(document, source, notebook.cells, _front_matter(dict(notebook.metadata), versions))


def _front_matter(given: dict, versions: dict[str, str]) -> dict:
    """The checked front matter, complete. Raises ValueError naming the entry."""
    given = {key: value for key, value in given.items() if key not in ("jupytext", "kernelspec")}
    for key in given:
        if key not in FRONT_MATTER:
            raise ValueError(f"front matter: {key!r}; allowed: {', '.join(FRONT_MATTER)}")
    if not isinstance(given.get("title"), str) or not given["title"].strip():
        raise ValueError(f"front matter: title is {given.get('title')!r}; it must be text")
    minutes = given.get("read")
    if isinstance(minutes, bool) or not isinstance(minutes, int) or minutes < 1:
        raise ValueError(f"front matter: read is {minutes!r}; write the minutes that reading takes, as in read: 45")
    for key, parts in {"minutes": ("cpu", "gpu"), "memory_gb": ("ram", "vram")}.items():
        value = given.get(key)
        if not isinstance(value, dict) or set(value) != set(parts):
            raise ValueError(f"front matter: {key} is {value!r}; write {key}: {{{parts[0]}: N, {parts[1]}: N}}")
        for part, number in value.items():
            if isinstance(number, bool) or not isinstance(number, (int, float)) or not 0 <= number < inf:
                raise ValueError(f"front matter: {key} {part} is {number!r}; it must be a number of at least 0")
    if "alone" in given and given["alone"] is not True:
        raise ValueError(f"front matter: alone is {given['alone']!r}; write alone: true, or nothing")
    if "after" in given and not (isinstance(given["after"], str) and re.fullmatch(r"\d\d", given["after"])):
        raise ValueError(f'front matter: after is {given["after"]!r}; write a lesson\'s two digits, as in after: "06"')
    colab = given.get("colab", [])
    if not isinstance(colab, list):
        raise ValueError(f"front matter: colab is {colab!r}; it must be a list of packages")
    for name in colab:
        if not isinstance(name, str) or settings.normal(name) not in versions or name in ("torch", "numpy"):
            raise ValueError(
                f"front matter: colab has {name!r}; allowed: packages in constraints.txt, not torch or numpy"
            )
    return {**given, "colab": colab}
