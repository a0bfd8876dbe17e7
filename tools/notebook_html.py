"""An executed notebook as one HTML file that asks the network for nothing and runs no scripts.

nbconvert's page loads MathJax, require.js and mermaid from a CDN. Here formulas become MathML, which browsers
draw themselves, every script goes, and a picture that lies elsewhere (the Colab badge) becomes its text.

A page says whose version it shows. Of an instructor's lab it folds the solutions and leaves out hidden tests and mark
schemes: students run it, too. Links to other notebooks lead to their pages, links to other files to where they lie.
"""

from __future__ import annotations

import html
import os
import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

import nbformat
from bs4 import BeautifulSoup
from latex2mathml.converter import convert
from nbconvert.exporters.html import HTMLExporter
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from nbformat import NotebookNode

from tools.figures import data_address
from tools.links import INDEX

# Widgets and scripts need JavaScript from a CDN; without them a cell's plain output is shown.
SHOWN = ["text/html", "text/markdown", "image/svg+xml", "text/latex", "image/png", "image/jpeg", "text/plain"]
FORMULAS = """
math {  /* any other font lacks the table that says how high a superscript sits */
  font-family: "STIX Two Math", "Cambria Math", "Latin Modern Math", "Libertinus Math", "TeX Gyre Termes Math",
    "Noto Sans Math", "DejaVu Math TeX Gyre", math;
  font-size: 1.1em;
}
math[display="block"] { margin: .7em 0; }
mtd[columnalign="left"] { text-align: left; }
mtd[columnalign="right"] { text-align: right; }
.brace { padding-bottom: .25em; border-bottom: 1.5px solid currentcolor; }
"""
STYLE = """
body.jp-Notebook { max-width: 70rem; margin: 0 auto; }
.jp-RenderedMarkdown > :is(p, ul, ol, blockquote, details) { max-width: 52rem; }
.jp-RenderedMarkdown > table { margin-left: 0; }
details + * { margin-top: 1em; }
.jp-RenderedMarkdown .highlight { margin-bottom: 1em; }
@media (max-width: 50rem) {
  .jp-InputPrompt, .jp-OutputPrompt { display: none; }
  .jp-RenderedMarkdown table { display: block; overflow-x: auto; }
  math[display="block"] { overflow-x: auto; }
  :is(.highlight, .jp-OutputArea-output) pre {
    overflow-wrap: normal !important; white-space: pre !important; overflow-x: auto;
  }
  .jp-OutputArea-output:has(> img) { overflow-x: auto; }
  .jp-OutputArea-output > img { max-width: none; width: 40rem; }  /* text in a plot would be too small to read */
}
.highlight pre, .jp-OutputArea-output pre { white-space: pre-wrap; overflow-wrap: anywhere; }
.highlight pre { font-family: var(--jp-code-font-family, monospace); }
.ledger-bar { display: flex; flex-wrap: wrap; justify-content: space-between; gap: .3rem 1.5rem; padding: .6rem 0; }
.ledger-version { border-left: 4px solid #23538f; background: #eef3f8; padding: .4rem 1rem; margin: .4rem 0 1rem; }
details > summary { cursor: pointer; }
details { margin: 0 0 .8rem; }
details.ledger-folded { border: 1px solid #dde2e7; padding: .3rem .6rem; flex: 1 1 auto; min-width: 0; }
img { max-width: 100%; color-scheme: light; }
"""
VERSIONS = {
    "lesson": "A lesson, executed.",
    "glossary": "The terms of the course, each with the lesson that teaches it.",
    "claims": "What other texts claim, each with a verdict and the place where the course audits it.",
    "student": "A student's version of a lab, executed.",
    "instructor": "The instructor's version of a lab, executed. Solutions are folded: open one when you have written "
    "your own. Hidden tests and mark schemes are left out.",
}
FOLDED = {"ledger-solution": "The instructor's solution", "hide-input": "The code of this cell"}  # by tag


def mathml(tex: str, display: str) -> str:
    """A formula as MathML; the TeX itself, as code, where the converter does not understand it."""
    try:
        # the converter knows align*, which is laid out the same
        drawn = convert(re.sub(r"\\(begin|end)\{(aligned|split)\}", r"\\\1{align*}", tex.strip()), display=display)
        return _braces(drawn) if r"\underbrace" in tex else drawn
    except Exception:  # the converter raises a dozen kinds of error, none with a common ancestor
        return f"<code>{html.escape(tex.strip())}</code>"


def _braces(drawn: str) -> str:
    """MathML with its underbraces as borders. Without a font for formulas a brace does not stretch under its term."""
    soup = BeautifulSoup(drawn, "html.parser")
    for under in soup.find_all("munder"):
        term, brace = under.find_all(True, recursive=False)
        if brace.get_text() == "\u23df":
            term["class"] = "brace"
            under.replace_with(term)
    return str(soup)


class MathMLRenderer(IPythonRenderer):
    """nbconvert's Markdown renderer with formulas drawn."""

    def block_math(self, body: str) -> str:
        return mathml(body, "block")

    def inline_math(self, body: str) -> str:
        return mathml(body, "inline")

    def latex_environment(self, name: str, body: str) -> str:
        return mathml(f"\\begin{{{name}}}{body}\\end{{{name}}}", "block")


class OfflineExporter(HTMLExporter):
    """HTML without scripts, widgets or anything that is fetched."""

    @property
    def default_config(self):
        config = super().default_config
        config.NbConvertBase.display_data_priority = SHOWN
        return config

    def default_filters(self):
        yield from super().default_filters()
        yield "markdown2html", lambda source: MarkdownWithMath(renderer=MathMLRenderer(escape=False)).render(source)


def join_streams(cell) -> None:
    """Put a cell's text outputs together and keep the last state of each progress bar, as a terminal would."""
    joined: dict[str, NotebookNode] = {}
    outputs = []
    for output in cell.get("outputs", []):
        if output.output_type == "stream" and output.name in joined:
            joined[output.name].text += output.text
            continue
        if output.output_type == "stream":
            joined[output.name] = output
        outputs.append(output)
    for output in joined.values():
        lines = (line.rstrip("\r").rpartition("\r")[2] for line in output.text.split("\n"))
        output.text = "\n".join(lines)
    if "outputs" in cell:
        cell.outputs = [o for o in outputs if o.output_type != "stream" or o.text.strip()]


def without(source: str, region: str) -> str:
    """``source`` without what stands between nbgrader's marks of this region, and without the marks."""
    return re.sub(rf"^[ \t]*### BEGIN {region}$.*?^[ \t]*### END {region}$\n?", "", source, flags=re.M | re.S).rstrip()


def unmarked(source: str) -> str:
    """``source`` without nbgrader's marks, which say nothing to a reader."""
    return re.sub(r"^[ \t]*### (BEGIN|END) (SOLUTION|HIDDEN TESTS|MARK SCHEME)$\n?", "", source, flags=re.M).rstrip()


def for_students(cells) -> None:
    """Leave out hidden tests and mark schemes, drop all marks, and tag the solutions, which ``fold`` then folds."""
    for cell in cells:
        if "### BEGIN SOLUTION" in cell.source:
            cell.metadata.tags = [*cell.metadata.get("tags", []), "ledger-solution"]
        cell.source = unmarked(without(without(cell.source, "HIDDEN TESTS"), "MARK SCHEME"))


def fold(soup: BeautifulSoup) -> None:
    """Put the code of cells with a tag in ``FOLDED`` under a heading that says what it is, closed."""
    for tag, heading in FOLDED.items():
        for editor in soup.select(f"div.celltag_{tag} div.jp-InputArea-editor"):
            editor.wrap(soup.new_tag("details", attrs={"class": "ledger-folded"}))
            summary = soup.new_tag("summary")
            summary.string = heading
            editor.insert_before(summary)


def relink(soup: BeautifulSoup, source: Path, output: Path, pages: set[str], report: str) -> None:
    """Relative links of the notebook at ``source`` -> links from ``output``; one to nothing becomes its text.

    The map is no page of a run: what leads to it leads to the ``report``, which lists the pages.
    """
    for link in soup.find_all("a", href=True):
        parts = urlsplit(str(link["href"]))
        if parts.scheme or parts.netloc or not parts.path:
            continue
        target = (source.parent / unquote(parts.path)).resolve()
        fragment = f"#{parts.fragment}" if parts.fragment else ""
        if target.suffix == ".ipynb" and target.stem in pages:
            link["href"] = f"{target.stem}.html{fragment}"
        elif target.name == INDEX and report:
            link["href"] = report
        elif target.exists():
            link["href"] = Path(os.path.relpath(target, output.parent.resolve())).as_posix() + fragment
        else:
            link.unwrap()


def neighbours(name: str, names: list[str], report: str) -> list[tuple[str, str]]:
    """(text, address) of the links on a page: the one before, the report, the one after, as far as they are there."""
    i = names.index(name)
    before, after = names[max(i - 1, 0) : i], names[i + 1 : i + 2]
    links = [(f"\u2190 {other}", f"{other}.html") for other in before]
    links.append(("The report of this run", report))
    return links + [(f"{other} \u2192", f"{other}.html") for other in after]


def frame(soup: BeautifulSoup, version: str, links: list[tuple[str, str]]) -> None:
    """Links above and below the notebook, and the word whose version it is."""
    body = soup("body")[0]
    said = soup.new_tag("p", attrs={"class": "ledger-version"})
    said.string = VERSIONS[version]
    body.insert(0, said)
    for place in (0, len(body.contents) + 1):
        bar = soup.new_tag("nav", attrs={"class": "ledger-bar", "aria-label": "Pages of this run"})
        for text, address in links:
            link = soup.new_tag("a", href=address)
            link.string = text
            bar.append(link)
        body.insert(place, bar)


def offline(page: str, folder: Path | None = None) -> BeautifulSoup:
    """An exporter's page without anything that is fetched or run, in the course's style.

    A picture that is a file below ``folder`` comes into the page.
    """
    soup = BeautifulSoup(page, features="html.parser")
    for picture in soup.find_all("img", src=re.compile(r"^[^:]+\.svg$")):
        if folder and (file := folder / unquote(str(picture["src"]))).exists():
            picture["src"] = data_address(file)
    for script in soup(["script", "link"]):
        script.decompose()
    for picture in soup.find_all("img", src=lambda src: not str(src).startswith("data:")):
        picture.replace_with(str(picture.get("alt") or "picture"))
    for block in soup.find_all("div", class_="jp-RenderedLatex"):
        block.replace_with(BeautifulSoup(mathml(block.get_text().strip().strip("$"), "block"), "html.parser"))
    for sheet in soup("style"):
        sheet.string = re.sub(r"@font-face\s*{[^}]*}", "", sheet.get_text())  # nbgrader's lie in files beside its own
    style = soup.new_tag("style")
    style.string = FORMULAS + STYLE
    soup("head")[0].append(style)
    return soup


def to_html(
    notebook: Path, output: Path, *, version: str = "lesson", source: Path | None = None,
    names: list[str] | None = None, report: str = "",
) -> None:  # fmt: skip
    """Write ``notebook`` as HTML to ``output``. Raises OSError, or nbformat's errors for a broken notebook.

    ``version`` is a key of ``VERSIONS``. ``source`` is where the notebook lies that was executed: its links start
    there. ``names`` are the notebooks that have a page in this folder, in turn; ``report`` is the report's address.
    """
    content = nbformat.read(notebook, as_version=4)
    content.metadata.setdefault("title", notebook.stem)
    for cell in content.cells:
        join_streams(cell)
        if cell.metadata.get("jupyter", {}).pop("source_hidden", False):
            cell.metadata.tags = sorted({*cell.metadata.get("tags", []), "hide-input"})
    if version == "instructor":
        for_students(content.cells)
    page, _ = OfflineExporter().from_notebook_node(content)
    soup = offline(page, (source or notebook).parent)
    fold(soup)
    relink(soup, source or notebook, output, {*(names or [])}, report)
    frame(soup, version, neighbours(notebook.stem, names, report) if names else [])
    output.write_text(str(soup), encoding="utf8")
