"""The site: what a tiny course's pages show and hide, where they lead, and that nothing is asked of another host."""

from __future__ import annotations

import re
import shutil
from contextlib import redirect_stdout
from io import StringIO
from types import SimpleNamespace

import nbformat
import pytest
from bs4 import BeautifulSoup
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from tests.tiny_course import HEAD, LAB, LESSON
from tools import ROOT, build, site, site_check

# myst-parser asks Sphinx for what goes in Sphinx 11; pyproject.toml stays below 10.
pytestmark = pytest.mark.filterwarnings("ignore:'myst_parser:sphinx.deprecation.RemovedInSphinx11Warning")

MAP = '---\ntitle: The map\n---\n\n## All\n\n[[ row("01", "count") ]]\n[[ row("lab01", "double") ]]\n'
TERMS = "The terms.\n\n### rank of it\n*Lesson 01; also: ranks*\n\nHow many $n^2$ there are.\n"
TEXT = """
Ranks, $a_1$, and [the end](#The-end:-here).

$$\\begin{aligned} x &= \\underbrace{y}_{z} \\end{aligned}$$

![A line.](figures/line.svg)

<details><summary>Answer</summary>

It is *two*.

</details>

## The end: here

```{code-cell}
:tags: [hide-input]

from IPython.display import HTML, display
print("Saved in", __import__("os").getcwd())
display(HTML('<img alt="A bar." src="data:image/gif;base64,R0lGODlhAQABAAAAACw=">'))
```
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """A tiny course, run and made a site: its folder, what was said, and a function from a page to its soup."""
    root = tmp_path_factory.mktemp("course")
    for name in ("pyproject.toml", "constraints.txt", "LICENSE", "README.md"):
        shutil.copy(ROOT / name, root)
    texts = {"index.md": MAP, "glossary.md": TERMS, "lessons/01-tiny.md": LESSON + TEXT, "labs/lab01-tiny.md": LAB}
    for name, text in texts.items():
        (root / "content" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "content" / name).write_text(text, encoding="utf8")
    with redirect_stdout(StringIO()) as said:
        assert build.main([], root) == 0
        (root / "lessons" / "figures").mkdir()
        (root / "lessons" / "figures" / "line.svg").write_text('<svg xmlns="http://www.w3.org/2000/svg"/>')
        code = site.main(["--root", str(root)])
    pages = root / "build" / "site"

    def soup(page: str) -> BeautifulSoup:
        return BeautifulSoup((pages / f"{page}.html").read_text(encoding="utf8"), "html.parser")

    return SimpleNamespace(root=root, code=code, said=said.getvalue(), pages=pages, soup=soup)


def test_it_runs_what_has_not_been_run_and_leads_everywhere(ran):
    assert ran.code == 0 and "4 of 4 passed" in ran.said and "every link in them followed" in ran.said
    sidebar = [link.get_text() for link in ran.soup("lessons/01-tiny").select(".sidebar-tree a")]
    assert sidebar == ["Tiny", "Tiny", "Glossary"]
    for page in ("index", "lessons/01-tiny", "lessons/glossary", "labs/lab01-tiny/lab01-tiny"):
        assert ran.soup(page).select("form.sidebar-search-container, .sidebar-search-container form, input[name=q]")
        assert not ran.soup(page).select(".next-page, .prev-page")  # the notebook's own links lead there


def test_the_search_knows_text_code_and_terms(ran):
    index = (ran.pages / "searchindex.js").read_text(encoding="utf8")
    titles = re.search(r'"alltitles":\{(.*?)\},"', index)[1] if '"alltitles"' in index else index
    assert "rank of it" in titles and "The end: here" in titles
    assert re.search(r'"?doubl"?:', index)


def test_links_and_anchors_are_the_notebooks_own(ran):
    lesson = ran.soup("lessons/01-tiny")
    addresses = {link.get_text(): link["href"] for link in lesson.select("article a[href]")}
    assert addresses["Ranks"] == "glossary.html#rank-of-it" and addresses["Index"] == "../index.html"
    assert "The end: here" in lesson.find(id=addresses["the end"].removeprefix("#")).get_text()
    assert lesson.find(id="The-end:-here") and ran.soup("lessons/glossary").find(id="rank-of-it")  # addresses of old


def test_a_lab_shows_its_solution_folded_and_no_hidden_test(ran):
    lab = ran.soup("labs/lab01-tiny/lab01-tiny")
    [solution] = [box for box in lab("details") if "secret answer" in box.get_text()]
    assert not solution.has_attr("open") and "The instructor's solution" in solution.summary.get_text()
    shown = lab.get_text()
    assert "assert checks.call(double, 2) == 4" in shown and "Solutions are folded" in shown
    everything = "".join(path.read_text(encoding="utf8") for path in ran.pages.rglob("*.*s") if path.suffix == ".js")
    for text in (shown, everything):
        assert not re.search("secret test|secret mark|HIDDEN|MARK SCHEME|BEGIN", text)


def test_formulas_pictures_and_folded_cells(ran):
    lesson = ran.soup("lessons/01-tiny")
    assert len(lesson.select("span.math math")) == 1 and len(lesson.select("div.math math .brace")) == 1
    assert {picture["alt"] for picture in lesson("img")} == {"A line.", "A bar."}
    folded = {box.summary.get_text(" ", strip=True).split(" The")[0]: box for box in lesson("details")}
    assert "display(HTML(" in folded["The code of this cell"].get_text() and folded["Answer"].em.get_text() == "two"


def test_the_page_says_when_and_on_what_it_ran_and_nothing_of_whose_machine(ran):
    lesson = ran.soup("lessons/01-tiny")
    [said] = lesson.select(".ledger-ran")
    assert re.match(r"Run on \d{4}-\d\d-\d\d on .*, with Python 3\.\d+\.\d+, torch 2\.", said.get_text())
    assert "Saved in build/run/work/01-tiny" in lesson.get_text()
    assert not ran.soup("lessons/glossary").select(".ledger-ran")  # nothing ran there
    assert "importlib" not in lesson.get_text()  # Colab's set-up
    assert not any(str(ran.root) in path.read_text(encoding="utf8") for path in ran.pages.rglob("*.html"))


def test_it_is_made_again_without_running_again_and_a_bad_link_is_refused(ran, tmp_path, capsys):
    root = tmp_path / "course"
    shutil.copytree(ran.root, root)
    executed = root / "build" / "run" / "glossary.ipynb"
    content = nbformat.read(executed, as_version=4)
    content.cells.append(new_markdown_cell("[nowhere](02-none.ipynb#x)"))
    nbformat.write(content, executed)
    assert site.main(["--root", str(root)]) == 2
    said = capsys.readouterr()
    assert said.out.count("kept ") == 4 and "02-none.ipynb" in said.err and "\x1b" not in said.err


def test_a_course_without_a_map_is_refused(course, capsys):
    root = course(**{"lessons/01-tiny.md": HEAD + "\nText.\n"})
    assert build.main([], root) == 0 and site.main(["--root", str(root)]) == 2
    assert capsys.readouterr().err == f"site: no index.ipynb in {root}; make it with: make notebooks\n"


def test_widgets_badges_and_injected_cells_are_not_shown(tmp_path):
    badge = f"[![Open in Colab]({site.BADGE})](https://colab.research.google.com/x)"
    data = {site.WIDGET: {}, "text/plain": "A panel."}
    cells = [
        new_markdown_cell(f"# T\n\n{badge}"),
        new_code_cell("READINGS_DIR = 1", metadata={"tags": ["injected-parameters"]}),
        new_code_cell("panel", outputs=[new_output("display_data", data)]),
    ]
    metadata = {**build.KERNEL, "papermill": {"end_time": "2026-01-02T03:04:05"}, "widgets": {}}
    nbformat.write(new_notebook(cells=cells, metadata=metadata), tmp_path / "a.ipynb")
    content = site.shown(tmp_path / "a.ipynb", "lesson", tmp_path, "<a GPU>")
    title, panel, said = content.cells
    assert title.source == "# T\n\n[Open in Colab](https://colab.research.google.com/x)"
    assert panel.outputs[0].data == {"text/plain": "A panel."} and "widgets" not in content.metadata
    assert "Run on 2026-01-02 on &lt;a GPU&gt;." in said.source


PAGE = '<link href="a.css" rel="stylesheet"><h1 id="top-of-it">T</h1><a href="b.html#x y">b</a><img src="p.png" alt="">'


@pytest.mark.parametrize(
    ("add", "problem"),
    [
        ("", None),
        ('<a href="https://example.org/x">out</a>', None),
        ('<a href="c.html">c</a>', "leads to c.html, which is not there"),
        ('<a href="../c.html">c</a>', "leads to ../c.html, which is not there"),
        ('<a href="b.html#y">c</a>', "leads to b.html#y, and that page has no such place"),
        ('<a href="#y">c</a>', "leads to #y, and that page has no such place"),
        ('<img src="q.png" alt="">', "leads to q.png, which is not there"),
        ('<img src="//example.org/q.png" alt="">', "asks another host for //example.org/q.png"),
        ('<script src="https://example.org/m.js"></script>', "asks another host for https://example.org/m.js"),
        ("<style>@import 'https://example.org/f';</style>", "asks another host for https://example.org/f"),
        ('<p style="background: url(http://example.org/f)">', "asks another host for http://example.org/f"),
    ],
)
def test_what_the_check_finds(tmp_path, add, problem):
    (tmp_path / "a.html").write_text(PAGE + add)
    (tmp_path / "b.html").write_text('<h2 id="x y">B</h2><a href="a.html#top-of-it">a</a>')
    (tmp_path / "a.css").write_text("p { background: url(p.png) }")
    (tmp_path / "p.png").write_bytes(b"")
    count, broken, elsewhere = site_check.check(tmp_path)
    assert count == 2 and broken == ([f"a.html {problem}"] if problem else [])
    assert elsewhere == (["https://example.org/x"] if "out" in add else [])


def test_the_check_reads_style_sheets(tmp_path):
    (tmp_path / "a.css").write_text("@import url(//example.org/f.css); p { background: url('none.png') }")
    _, broken, _ = site_check.check(tmp_path)
    said = ["asks another host for //example.org/f.css", "leads to none.png, which is not there"]
    assert broken == [f"a.css {problem}" for problem in said]
