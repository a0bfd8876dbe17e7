"""Where a notebook leads: the ones before and after it, its lesson or lab, the glossary, papers.

Links are relative, from folder to folder as the notebooks lie in the repository; a copy of the folders, and the
pages of a report, keep them (tools/notebook_html.py). Only what the build makes is linked.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from tools.texts import Document

INDEX = "index.ipynb"
PAPER = re.compile(r"\barXiv[: ]\s?(\d{4}\.\d{4,5})(?:v\d+)?\b")
# "lesson 02", "Lessons 07 (LoRA)", "lessons 08 and 09": a word and one number or more
MENTION = re.compile(r"\b([Ll]esson|[Ll]ab)(s?)([ \n])(\d\d)\b((?:(?:, | and | or | to )\d\d\b)*)")
KEPT = re.compile(  # what stays as it is: nothing in it becomes a link
    r"""
    ^[ ]*```.*?^[ ]*```                     # fenced code
  | ^[ ]*~~~.*?^[ ]*~~~
  | ^\#\#\#[ ]BEGIN.*?^\#\#\#[ ]END         # a mark scheme
  | ^\#{1,6}[ ].*?$                         # headings
  | <summary>.*?</summary> | <a\b.*?</a> | <!--.*?--> | </?[a-zA-Z][^<>]*>
  | (?P<ticks>`+)(?P<code>.+?)(?P=ticks)    # code
  | \$\$.+?\$\$                             # formulas
  | \\begin\{(?P<math>\w+\*?)\}.*?\\end\{(?P=math)\}
  | (?<![\\$])\$(?:[^$\n]|\n(?!\n))+\$
  | !?\[(?:[^\[\]]|\[[^\[\]]*\])*\]\([^()\s]*(?:\([^()]*\))?[^()]*\)  # links and pictures
  | https?://\S+
    """,
    re.DOTALL | re.MULTILINE | re.VERBOSE,
)
LEADING = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^()\s]+)\)")


def way(page: str, to: str) -> str:
    """The relative link from one page of the course to another."""
    return os.path.relpath(to, os.path.dirname(page)).replace(os.sep, "/")


def pieces(source: str) -> Iterator[tuple[str, str | None]]:
    """Markdown in parts, with what each is: prose is None, a span of code its code, else "" (a formula, a link ...)."""
    end = 0
    for match in KEPT.finditer(source):
        yield source[end : match.start()], None
        yield match[0], match["code"] or ""
        end = match.end()
    yield source[end:], None


class Neighbours:
    """The lessons and labs around each one. ``titles`` has all documents, in order; ``index``: is there an index?

    ``waits``: the number of the lesson that a lab comes after, where that is not its own.
    """

    def __init__(self, titles: dict[Document, str], index: bool, waits: dict[Document, str] | None = None):
        self.titles, self.index, self.waits = titles, index, waits or {}

    def _link(self, frm: Document, to: Document, text: str = "") -> str:
        return f"[{text or self.titles[to]}]({way(frm.page, to.page)})"

    def _around(self, document: Document) -> tuple[Document | None, Document | None, Document | None]:
        """The one before it, the one after it, and its lab or lesson."""
        kind = [other for other in self.titles if other.is_lab == document.is_lab]
        place = kind.index(document)
        pair = (d for d in self.titles if d.is_lab != document.is_lab and d.number == document.number)
        before = kind[place - 1] if place else None
        return before, kind[place + 1] if place + 1 < len(kind) else None, next(pair, None)

    def header(self, document: Document) -> str:
        """One line of links for the top; nothing where there is nowhere to go."""
        before, after, pair = self._around(document)
        links = [self._link(document, before, f"← {_short(before)}")] if before else []
        links += [f"[Index]({way(document.page, INDEX)})"] if self.index else []
        links += [self._link(document, after, f"{_short(after)} →")] if after else []
        links += [f"its {'lesson' if document.is_lab else 'lab'}: {self._link(document, pair)}"] if pair else []
        return " · ".join(links)

    def footer(self, document: Document) -> str:
        """What comes next: after a lesson its lab, after that the next lesson."""
        _, after, _ = self._around(document)
        if document.is_lab:
            behind = self.waits.get(document, document.number)
            lessons = [d for d in self.titles if not d.is_lab and d.number > behind]
            steps = lessons[:1] or ([after] if after else [])
        else:
            labs = [d for d in self.titles if d.is_lab and self.waits.get(d, d.number) == document.number]
            steps = [*labs, *([after] if after else [])]
        return f"Go on with {', then '.join(self._link(document, step) for step in steps)}." if steps else ""

    def linked(self, document: Document, sources: list[str]) -> list[str]:
        """Pieces of Markdown with papers linked, and the first mention of each other lesson and lab."""
        waiting = {(("lab" if d.is_lab else "lesson"), d.number): d for d in self.titles if d != document}

        def mention(match: re.Match) -> str:
            word, plural, space, first, others = match.groups()

            def one(number: str, text: str) -> str:
                to = waiting.pop((word.lower(), number), None)
                return self._link(document, to, text) if to else text

            return one(first, f"{word}{plural}{space}{first}") + re.sub(r"\d\d", lambda m: one(m[0], m[0]), others)

        def prose(text: str) -> str:
            return MENTION.sub(mention, text)

        return [_in_prose(prose, _in_prose(papers, source)) for source in sources]


def papers(text: str) -> str:
    """Prose with each "arXiv 2305.14314" linked to its abstract."""
    return PAPER.sub(lambda match: f"[{match[0]}](https://arxiv.org/abs/{match[1]})", text)


def _in_prose(change, source: str) -> str:
    return "".join(change(text) if kind is None else text for text, kind in pieces(source))


def unlinked(source: str) -> str:
    """Markdown without its relative links: the text of each stays. For a notebook that travels alone."""

    def change(match: re.Match) -> str:
        picture, text, to = match.groups()
        return match[0] if picture or re.match(r"[a-z]+:|#", to) else text

    return LEADING.sub(change, source)


def _short(document: Document) -> str:
    return f"{'Lab' if document.is_lab else 'Lesson'} {document.number}"
