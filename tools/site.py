"""The executed course as a web site: ``python -m tools.site`` (``make site``), in ``build/site/``.

It runs what ``make run`` has not run yet, or what has changed since, lays the executed notebooks out as the course's
folders are, so that links between them hold, and gives them to Sphinx and myst-nb. Nothing on a page is fetched from
another host: formulas are MathML, and the theme and the search are files beside the pages. Then every link is checked.

Pages show what students may see: solutions folded, no hidden test, no mark scheme. A warning of Sphinx is an error.
"""

from __future__ import annotations

import argparse
import html
import os
import re
import shutil
import sys
from datetime import datetime
from io import StringIO
from pathlib import Path

import nbformat
from docutils import nodes  # type: ignore[import-untyped]
from nbformat.v4 import new_markdown_cell
from sphinx.application import Sphinx
from sphinx.errors import SphinxError

from tools import ROOT, index, report, run, site_check
from tools.notebook_html import FOLDED, FORMULAS, VERSIONS, for_students, join_streams, mathml
from tools.opening import BADGE

WIDGET = "application/vnd.jupyter.widget-view+json"
LEFT_OUT = {"bootstrap", "injected-parameters"}  # Colab's set-up, and where this run put its readings
SETTINGS = {
    "project": "The Memory Ledger",
    "html_title": "The Memory Ledger",
    "extensions": ["myst_nb", "tools.site"],
    "nb_execution_mode": "off",
    "nb_ipywidgets_js": {},  # they would come from a CDN
    "nb_code_prompt_show": FOLDED["hide-input"],
    "nb_code_prompt_hide": FOLDED["hide-input"],
    "myst_enable_extensions": ["amsmath", "dollarmath"],
    "myst_heading_anchors": 4,
    "myst_heading_slug_func": "tools.site.slug",
    "suppress_warnings": ["myst.header"],  # the glossary's terms are ###, right below its #
    "nitpicky": True,
    "html_theme": "furo",
    "html_math_renderer": "mathml",
    "html_static_path": ["_static"],
    "html_css_files": ["site.css"],
    "html_copy_source": False,
    "html_show_copyright": False,
    "html_show_sphinx": False,
}


def slug(heading: str) -> str:
    """A heading's anchor, as JupyterLab and GitHub make it and the course's links have it."""
    return heading.replace(" ", "-")


def setup(app: Sphinx) -> None:
    """What Sphinx calls in an extension: formulas as MathML, and no second way to the neighbours."""

    def drawn(display: str):
        def visit(writer, node: nodes.Element) -> None:
            tag = "div" if display == "block" else "span"
            writer.body.append(f'<{tag} class="math">{mathml(node.astext(), display)}</{tag}>')
            raise nodes.SkipNode

        return visit, None

    app.add_html_math_renderer("mathml", drawn("inline"), drawn("block"))
    app.connect("html-page-context", lambda app, page, template, context, doctree: context.update(prev=None, next=None))


def shown(executed: Path, version: str, root: Path, ran: str) -> nbformat.NotebookNode:
    """An executed notebook as the site shows it. ``root`` is no reader's; ``ran`` says on what it was run."""
    content = nbformat.read(executed, as_version=4)
    cells = [cell for cell in content.cells if not LEFT_OUT & set(cell.metadata.get("tags", []))]
    if version == "instructor":
        for_students(cells)
        cells.insert(1, new_markdown_cell(f'<p class="ledger-note">{VERSIONS[version]}</p>'))
    for cell in cells:
        join_streams(cell)
        tags = set(cell.metadata.get("tags", []))
        if "ledger-solution" in tags:
            heading = FOLDED["ledger-solution"]
            cell.metadata["mystnb"] = {"code_prompt_show": heading, "code_prompt_hide": heading}
        if tags & FOLDED.keys() or cell.metadata.get("jupyter", {}).get("source_hidden"):
            cell.metadata["tags"] = ["hide-input"]
        for output in cell.get("outputs", []):
            output.get("data", {}).pop(WIDGET, None)
            if output.output_type == "stream":
                output.text = output.text.replace(f"{root}{os.sep}", "")
        if cell.cell_type == "markdown":  # a badge comes from another host
            cell.source = re.sub(rf"!\[([^\]]*)\]\({re.escape(BADGE)}\)", r"\1", cell.source)
    if any(cell.cell_type == "code" for cell in cells):
        day = datetime.fromisoformat(content.metadata["papermill"]["end_time"]).strftime("%Y-%m-%d")
        cells.append(new_markdown_cell(f'<p class="ledger-ran">Run on {day} on {html.escape(ran)}.</p>'))
    content.cells = cells
    content.metadata = {name: content.metadata[name] for name in ("kernelspec", "language_info")}
    return content


def lay_out(root: Path, output: Path, source: Path) -> None:
    """Write the executed notebooks in ``output`` to ``source``, where the course has them; labs are the solutions."""
    facts = report.read_results(output)["environment"]
    packages = ", ".join(f"{name} {facts['packages'][name]}" for name in ("torch", "transformers", "peft"))
    ran = f"{facts['gpu'] or 'a CPU, ' + facts['cpu']}, with Python {facts['python']}, {packages}"
    pages = {}
    for notebook in run.find(root, "solutions", []):
        place = notebook.path.relative_to(root).as_posix().replace("solutions/", "labs/", 1)
        pages[notebook.name] = place
        target = source / place
        target.parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(shown(output / f"{notebook.name}.ipynb", notebook.version, root, ran), target)
    for folder in ("lessons", "labs"):  # pictures
        if (root / folder).exists():
            ignore = shutil.ignore_patterns("*.ipynb", ".*")
            shutil.copytree(root / folder, source / folder, ignore=ignore, dirs_exist_ok=True)
    (source / "_static").mkdir()
    style = FORMULAS + Path(__file__).with_name("site.css").read_text(encoding="utf8")
    (source / "_static" / "site.css").write_text(style, encoding="utf8")
    ordered = [pages.pop(name).removesuffix(".ipynb") for name in report.in_turn([*pages]) if name != "index"]
    contents = "\n".join(["```{toctree}", ":hidden:", "", *ordered, "```"])
    start = nbformat.read(source / index.PAGE, as_version=4)
    start.cells.append(new_markdown_cell(contents))
    nbformat.write(start, source / index.PAGE)


def build(source: Path, pages: Path, work: Path) -> None:
    """Sphinx: from notebooks to pages. Raises ValueError with the first warning or error."""
    said = StringIO()
    try:
        app = Sphinx(
            source, None, pages, work / "doctrees", "html", SETTINGS, status=None, warning=said, freshenv=True,
            warningiserror=True,
        )  # fmt: skip
        app.build(force_all=True)
    except SphinxError as error:
        raise ValueError(f"{error}") from None
    if app.statuscode:
        raise ValueError(re.sub(r"\x1b\[[\d;]*m", "", said.getvalue()).strip())


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.site", description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=ROOT, help=argparse.SUPPRESS)
    root = parser.parse_args(argv).root.resolve()
    if not (root / index.PAGE).exists():
        print(f"site: no {index.PAGE} in {root}; make it with: make notebooks", file=sys.stderr)
        return 2
    code = run.main(["--root", str(root), "--resume"])
    if code > 1:  # nothing was run, or it was stopped; a notebook that failed has its page
        return code
    pages, work = root / "build" / "site", root / "build" / "site-work"
    for folder in (pages, work):
        shutil.rmtree(folder, ignore_errors=True)
    try:
        lay_out(root, root / "build" / "run", work / "source")
        build(work / "source", pages, work)
    except (ValueError, OSError) as problem:
        print(f"site: {problem}", file=sys.stderr)
        return 2
    count, broken, elsewhere = site_check.check(pages)
    print(f"{count} pages, every link in them followed; {len(elsewhere)} links lead to other sites, not followed.")
    for line in broken:
        print(f"site: {line}", file=sys.stderr)
    shutil.rmtree(work)
    print(f"Site: {pages / 'index.html'}")
    return 1 if broken else code


if __name__ == "__main__":
    sys.exit(main())
