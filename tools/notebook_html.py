"""An executed notebook as one HTML file that asks the network for nothing and runs no scripts.

nbconvert's page loads MathJax, require.js and mermaid from a CDN. Here formulas become MathML, which browsers
draw themselves, every script goes, and a picture that lies elsewhere (the Colab badge) becomes its text.
"""

from __future__ import annotations

import html
import re
from pathlib import Path

import nbformat
from bs4 import BeautifulSoup
from latex2mathml.converter import convert
from nbconvert.exporters.html import HTMLExporter
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from nbformat import NotebookNode

# Widgets and scripts need JavaScript from a CDN; without them a cell's plain output is shown.
SHOWN = ["text/html", "text/markdown", "image/svg+xml", "text/latex", "image/png", "image/jpeg", "text/plain"]
STYLE = """
body.jp-Notebook { max-width: 60rem; margin: 0 auto; }
math { font-family: "STIX Two Math", "Cambria Math", "Latin Modern Math", math; font-size: 1.1em; }
math[display="block"] { margin: .7em 0; }
mtd[columnalign="left"] { text-align: left; }
mtd[columnalign="right"] { text-align: right; }
.highlight pre, .jp-OutputArea-output pre { white-space: pre-wrap; overflow-wrap: anywhere; }
.highlight pre { font-family: var(--jp-code-font-family, monospace); }
"""


def mathml(tex: str, display: str) -> str:
    """A formula as MathML; the TeX itself, as code, where the converter does not understand it."""
    try:
        # the converter knows align*, which is laid out the same
        return convert(re.sub(r"\\(begin|end)\{(aligned|split)\}", r"\\\1{align*}", tex.strip()), display=display)
    except Exception:  # the converter raises a dozen kinds of error, none with a common ancestor
        return f"<code>{html.escape(tex.strip())}</code>"


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


def to_html(notebook: Path, output: Path) -> None:
    """Write ``notebook`` as HTML to ``output``. Raises OSError, or nbformat's errors for a broken notebook."""
    content = nbformat.read(notebook, as_version=4)
    content.metadata.setdefault("title", notebook.stem)
    for cell in content.cells:
        join_streams(cell)
    page, _ = OfflineExporter().from_notebook_node(content)
    soup = BeautifulSoup(page, features="html.parser")
    for script in soup(["script", "link"]):
        script.decompose()
    for picture in soup.find_all("img", src=lambda src: not str(src).startswith("data:")):
        picture.replace_with(str(picture.get("alt") or "picture"))
    for block in soup.find_all("div", class_="jp-RenderedLatex"):
        block.replace_with(BeautifulSoup(mathml(block.get_text().strip().strip("$"), "block"), "html.parser"))
    style = soup.new_tag("style")
    style.string = STYLE
    soup("head")[0].append(style)
    output.write_text(str(soup), encoding="utf8")
