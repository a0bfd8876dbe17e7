"""The terms of the course: ``content/glossary.md`` -> ``lessons/glossary.ipynb``, and links to it.

A term is a heading, a line with the lesson that teaches it and its other spellings, and one to three sentences:

    ### activation
    *Lesson 01; also: activations, saved for backward*

    A tensor that the forward pass keeps for the backward pass.

In each lesson and lab it is linked where it stands first. A spelling that starts in lower case also matches at the
start of a sentence; one in backticks matches code; ``only`` instead of ``also`` says that the name itself is no
spelling (`predict`, but not the verb). What breaks a rule is refused, and so is a term that no lesson or lab uses.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from nbformat.v4 import new_markdown_cell

from tools.links import INDEX, pieces, way
from tools.texts import Document

PAGE = "lessons/glossary.ipynb"
FORM = re.compile(r"\*Lesson (\d\d)(?:; (also|only): ([^*]+))?\*\n\n(.+)", re.DOTALL)
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 -]*")  # what makes the same anchor everywhere


@dataclass(frozen=True)
class Term:
    """A term: its name, the number of its lesson, all its spellings, and what it means."""

    name: str
    lesson: str
    spellings: tuple[str, ...]
    meaning: str

    @property
    def anchor(self) -> str:
        """As JupyterLab, nbconvert and GitHub make it from the heading."""
        return self.name.replace(" ", "-")


def parse(text: str) -> tuple[str, list[Term]]:
    """What stands before the terms, and the terms. Raises ValueError naming the term that breaks a rule."""
    opening, *parts = re.split(r"^### ", text.strip(), flags=re.MULTILINE)
    terms: list[Term] = []
    taken: dict[str, str] = {}
    for part in parts:
        name, _, rest = part.strip().partition("\n")
        found = FORM.fullmatch(rest.strip())
        if not NAME.fullmatch(name):
            raise ValueError(f"term {name!r}: a name is letters, digits, spaces and hyphens")
        if not found:
            raise ValueError(f"term {name!r}: write *Lesson NN; also: spelling, spelling* below it, and its meaning")
        lesson, how, given, meaning = found.groups()
        others = [spelling.strip() for spelling in " ".join((given or "").split()).split(",") if spelling.strip()]
        spellings = (*([] if how == "only" else [name]), *others)
        terms.append(Term(name, lesson, spellings, meaning.strip()))
        for spelling in terms[-1].spellings:
            if taken.setdefault(spelling.lower(), name) != name:
                raise ValueError(f"term {name!r}: {spelling!r} is a spelling of {taken[spelling.lower()]!r}, too")
    for before, after in zip(terms, terms[1:]):
        if before.name.lower() >= after.name.lower():
            raise ValueError(f"term {after.name!r}: it comes before {before.name!r} in the alphabet")
    return opening.strip(), terms


class Linker:
    """Links each term at its first use in a notebook, and keeps which terms were used."""

    def __init__(self, terms: list[Term]):
        self.terms = terms
        self.used: set[Term] = set()
        self.owner = {spelling: term for term in terms for spelling in term.spellings}
        words = [s for s in sorted(self.owner, key=len, reverse=True) if not s.startswith("`")]
        self.pattern = re.compile(rf"(?<![\w-])(?:{'|'.join(map(_either_case, words))})(?![\w-])") if words else None

    def linked(self, sources: list[str], page: str, leave: Term | None = None) -> list[str]:
        """Pieces of Markdown, in the order of the notebook at ``page``, with their links. ``leave`` is not linked."""
        waiting = {term for term in self.terms if term != leave}
        target = "" if page == PAGE else way(page, PAGE)

        def link(text: str, spelling: str) -> str:
            term = self._term(spelling)
            if term not in waiting:
                return text
            waiting.remove(term)
            if page != PAGE:
                self.used.add(term)
            return f"[{text}]({target}#{term.anchor})"

        def piece(text: str, kind: str | None) -> str:
            if kind is None:
                return self.pattern.sub(lambda match: link(match[0], match[0]), text) if self.pattern else text
            return link(text, f"`{kind}`") if f"`{kind}`" in self.owner else text

        return ["".join(piece(text, kind) for text, kind in pieces(source)) for source in sources]

    def _term(self, text: str) -> Term:
        text = " ".join(text.split())
        return self.owner.get(text) or self.owner[text[0].lower() + text[1:]]

    def refuse_unused(self) -> None:
        """Raise ValueError for a term that no lesson and no lab uses."""
        for term in self.terms:
            if term not in self.used:
                raise ValueError(f"term {term.name!r}: no lesson or lab uses it: add its spelling, or delete it")


def cells(opening: str, linker: Linker, lessons: dict[str, Document], index: bool) -> list:
    """The glossary's notebook: what all terms are, then a cell each. Raises ValueError for an unknown lesson."""
    home = f"[Index]({way(PAGE, INDEX)})\n\n" if index else ""
    names = " · ".join(f"[{term.name}](#{term.anchor})" for term in linker.terms)
    out = [new_markdown_cell(f"# Glossary\n\n{home}{opening}\n\n{names}", id="title")]
    for term in linker.terms:
        if term.lesson not in lessons:
            raise ValueError(f"term {term.name!r}: lesson {term.lesson}; there is {', '.join(lessons)}")
        [meaning] = linker.linked([term.meaning], PAGE, leave=term)
        where = f"[Lesson {term.lesson}]({way(PAGE, lessons[term.lesson].page)})"
        out.append(new_markdown_cell(f"### {term.name}\n\n{meaning} *{where}*", id=f"term-{term.anchor}"))
    return out


def _either_case(spelling: str) -> str:
    """A pattern for a spelling, over one break of a line, and with a capital at the start of a sentence."""
    first, others = spelling[0], spelling[1:]
    start = f"[{first}{first.upper()}]" if first.islower() else re.escape(first)
    return start + "".join("[ \n]" if letter == " " else re.escape(letter) for letter in others)
