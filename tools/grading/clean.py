"""What students wrote, so that nothing of it runs in the browser of whoever opens the page.

Markdown may hold HTML, outputs may be HTML, SVG or LaTeX, and templates put pictures, sizes and counters into a page
as they stand. Here HTML keeps the elements and attributes listed below (bleach parses as browsers do), an SVG becomes
a picture, which runs nothing, a picture must be base64, and of metadata only nbgrader's stays. On a page, ``POLICY``
is a second wall: the browser itself then runs no script and fetches nothing.
"""

from __future__ import annotations

import base64
import re

import bleach
from bleach.css_sanitizer import CSSSanitizer
from nbconvert.filters.markdown_mistune import MarkdownWithMath
from nbconvert.preprocessors import Preprocessor

from tools.notebook_html import SHOWN, MathMLRenderer, mathml

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
TAGS = {
    *"a abbr b blockquote br caption code col colgroup dd del details div dl dt em figcaption figure".split(),
    *"h1 h2 h3 h4 h5 h6 hr i img ins kbd li mark ol p pre q s samp small span strong sub summary sup".split(),
    *"table tbody td tfoot th thead tr u ul var".split(),
    *"math menclose mfrac mi mn mo mover mpadded mphantom mroot mrow ms mspace msqrt mstyle msub msubsup msup".split(),
    *"mtable mtd mtext mtr munder munderover".split(),
}
PLAIN = {  # attributes that are only shown
    *"abbr align alt class colspan height id lang open role rowspan scope span start style title valign width".split(),
    *"accent accentunder columnalign columnlines columnspacing depth display displaystyle fence form linebreak".split(),
    *"linethickness lspace mathcolor mathsize mathvariant maxsize minsize movablelimits notation rowlines".split(),
    *"rowspacing rspace scriptlevel separator stretchy symmetric voffset xmlns".split(),
}  # fmt: skip
PICTURE = re.compile(r"data:image/(png|jpeg|gif|webp|svg\+xml)(;charset=[\w-]+)?[;,]", re.I)
BASE64 = re.compile(r"[A-Za-z0-9+/=\s]+")


def _allowed(tag: str, name: str, value: str) -> bool:
    if name == "src":
        return tag == "img" and bool(PICTURE.match(value))
    if name == "href":
        return tag == "a" and not value.strip().lower().startswith("data:")
    return name in PLAIN or name.startswith("aria-")


def html(text: str) -> str:
    """HTML without anything that runs or is fetched."""
    return bleach.clean(
        text, tags=TAGS, attributes=_allowed, protocols={"http", "https", "mailto", "data"},
        css_sanitizer=CSSSanitizer(), strip=True, strip_comments=True,
    )  # fmt: skip


def markdown(source: str) -> str:
    """Markdown as HTML, its formulas drawn, without anything that runs. Replaces nbconvert's ``markdown2html``."""
    return html(MarkdownWithMath(renderer=MathMLRenderer(escape=False)).render(source))


def picture(svg: str) -> str:
    """An SVG as an image: browsers run no script of an image."""
    return f'<img alt="a drawing" src="data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}">'


def shown(data: dict) -> dict:
    """Of what an output offers, the one form that a page shows, made harmless."""
    for kind in SHOWN:
        said = data.get(kind)
        if not isinstance(said, str) or (
            kind.startswith("image/") and kind[6:] in "png jpeg" and not BASE64.fullmatch(said)
        ):
            continue
        if kind == "text/latex":
            return {"text/html": html(mathml(said.strip().strip("$"), "block"))}
        if kind == "image/svg+xml":
            return {"text/html": picture(said)}
        if kind == "text/markdown":
            return {"text/html": markdown(said)}
        return {kind: html(said) if kind == "text/html" else said}
    return {"text/plain": ""}


def harmless(cell) -> None:
    """A cell's outputs, counters and metadata, before a template prints them. Its text the template escapes."""
    nbgrader, tags = cell.metadata.get("nbgrader"), cell.metadata.get("tags", [])
    cell.metadata.clear()
    if nbgrader:
        cell.metadata["nbgrader"] = nbgrader
    cell.metadata["tags"] = [tag for tag in tags if isinstance(tag, str) and re.fullmatch(r"[\w-]+", tag)]
    cell.pop("attachments", None)
    if cell.cell_type == "raw":
        cell.cell_type, cell.source = "markdown", f"```\n{cell.source}\n```"
    for thing in [cell, *cell.get("outputs", [])]:
        if not isinstance(thing.get("execution_count", 0), (int, type(None))):
            thing.execution_count = None
    for output in cell.get("outputs", []):
        if "data" in output:
            output.metadata = {}
            output.data = shown(output.data)


class Harmless(Preprocessor):
    """For nbgrader's own pages in JupyterLab, where a script would act as the instructor (nbgrader_config.py)."""

    enabled = True

    def preprocess(self, nb, resources):
        nb.metadata.pop("widgets", None)
        for cell in nb.cells:
            harmless(cell)
        return nb, resources
