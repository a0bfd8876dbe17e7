"""The page that a student gets, and formgrader's: what of a hostile notebook is left on them."""

import json
import shutil
import subprocess

import nbformat
import pytest
from bs4 import BeautifulSoup
from nbconvert.exporters import HTMLExporter
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output, new_raw_cell

from tests.test_grade import HIDDEN, graded, settings
from tools import ROOT
from tools.grading import clean
from tools.grading.feedback import FeedbackExporter

RUN = "document.title='run'"
X = f'<script>{RUN}</script><img src=x onerror="{RUN}"><svg onload="{RUN}"></svg>'
MARKDOWN = [
    f'# A title\n\n{X} <b>stays</b> <a href="javascript:{RUN}">a</a> [b](javascript:{RUN})',
    f"<iframe srcdoc='{X}'></iframe>",
    f"$10^9$ {X} $\\href{{javascript:{RUN}}}{{x}}$ $</math>{X}$",
    f'<style>body{{display:none}}</style><noscript><p title="</noscript>{X}"></noscript> <!--{X}-->',
    f'<math><mtext><table><mglyph><style><!--</style><img title="--&gt;&lt;img src=1 onerror={RUN}&gt;">',
    "<base href='http://example.com/'><meta http-equiv=refresh content='0;url=http://example.com/'>"
    f"<form action='http://example.com'><input autofocus onfocus=\"{RUN}\"></form>"
    "<p style='position:fixed;top:0'>over all</p><a href='data:text/html,x'>d</a>",
]
SVG = f'<svg xmlns="http://www.w3.org/2000/svg" onload="{RUN}"><script>{RUN}</script><rect width="9" height="9"/></svg>'
OUTPUTS = [
    {"text/html": X + "<table><tr><td>a table stays</td></tr></table>"}, {"image/svg+xml": SVG},
    {"text/markdown": X}, {"text/latex": "$$x^2$$" + X},
    {"image/png": f'"><script>{RUN}</script>', "text/plain": "a fallback"},
    {"application/javascript": RUN, "text/plain": X}, {"application/vnd.jupyter.widget-view+json": {"model_id": X}},
]  # fmt: skip


def hostile():
    """As nbgrader's autograded notebook: three cells of a student's and a check that failed."""
    metadata = {"tags": [f'"><script>{RUN}</script>', "kept"], "name": X}
    outputs = [new_output("display_data", data=data, metadata={"image/png": {"width": X}}) for data in OUTPUTS]
    outputs += [new_output("stream", text=X), new_output("error", ename=X, evalue=X, traceback=[X])]
    check = graded("check", f"assert double(2) == 4\n{HIDDEN}", 2)
    check.outputs = [
        new_output("error", ename="Wrong", evalue="it is $2$ too much", traceback=["HIDDEN TRUTH", HIDDEN])
    ]
    scheme = graded("why", "Why?\n\n### BEGIN MARK SCHEME\nThe scheme.\n### END MARK SCHEME", 3)
    task = new_markdown_cell(scheme.source, id="why", metadata=scheme.metadata)
    task.metadata.nbgrader.update(task=True, grade=False, cell_type="markdown")
    cells = [new_markdown_cell(text, metadata=metadata) for text in MARKDOWN]
    cells += [new_code_cell(f"'{X}'", outputs=outputs, metadata=metadata), new_raw_cell(X), check, task]
    for cell in (check, task):
        cell.metadata.nbgrader.update(score=0.0, comment=f"a comment {X}")
    return new_notebook(cells=cells, metadata={"title": X, "language_info": {"name": f'"><script>{RUN}</script>'}})


def page(exporter: HTMLExporter, resources: dict | None = None) -> str:
    given = {"nbgrader": {"notebook": "lab", "score": 0, "max_score": 5, "late_penalty": 0} | (resources or {})}
    return exporter.from_notebook_node(hostile(), given)[0]


def feedback(hidden: bool) -> str:
    from nbgrader.converters import GenerateFeedback

    config = settings(ROOT)
    config.FeedbackExporter.hidden = hidden
    return page(FeedbackExporter(config=GenerateFeedback(config=config).config))


def runs(text: str, own: int = 0) -> list[str]:
    """What in a page could run or be fetched, after ``own`` scripts of the template. The oracle: bs4's parser."""
    soup = BeautifulSoup(text, "html.parser")
    found = (
        [tag.name for tag in soup(["iframe", "object", "embed", "base", "form", "input", "svg", "link"])]
        if not own
        else []
    )
    found += [str(tag) for tag in soup("script") if RUN in tag.get_text()]
    for tag in soup(True):
        found += [f"{tag.name} {name}={value}" for name, value in tag.attrs.items()
                  if (name.startswith("on") and RUN in str(value)) or "javascript:" in str(value)]  # fmt: skip
    return found


@pytest.mark.parametrize("hidden", [False, True])
def test_nothing_of_a_student_runs_on_the_page(hidden):
    text = feedback(hidden)
    assert runs(text) == [] and "<script" not in text
    assert f'content="{clean.POLICY}"' in text and text.index("Content-Security-Policy") < text.index("<style")
    for stays in ("<b>stays</b>", "a table stays", "a fallback", "<msup>", "data:image/svg+xml;base64,", "over all"):
        assert stays in text, stays
    assert "position:fixed" not in text.replace(" ", "").partition("<body")[2]


def test_hidden_tests_and_mark_schemes_are_there_only_if_asked():
    without, with_hidden = feedback(False), feedback(True)
    for secret in ("double(5)", "The scheme."):
        text = BeautifulSoup(without, "html.parser").get_text()
        assert secret not in text and secret in BeautifulSoup(with_hidden, "html.parser").get_text()
    assert "HIDDEN TRUTH" not in with_hidden and "it is $2$ too much" in without
    assert "How it is graded" in with_hidden


def test_nothing_of_a_student_runs_in_formgrader():
    """What formgrader's own exporter makes of it, from the course's settings."""
    config = settings(ROOT)
    exporter = HTMLExporter(config=config)
    text = page(exporter)
    assert runs(text, own=1) == [] and "<b>stays</b>" in text


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("chromium"), reason="no Chromium")
def test_a_browser_runs_nothing(tmp_path):
    """Also without the policy, so that both walls hold by themselves; and a page without walls shows that it looks."""
    text, bare = feedback(True), f"<title>lab</title>{X}"
    policy = f"<meta http-equiv='Content-Security-Policy' content=\"{clean.POLICY}\">"
    for name, content, title in (
        ("page", text, "lab"), ("open", text.replace(clean.POLICY, ""), "lab"),
        ("none", bare, "run"), ("policy", policy + bare, "lab"),
    ):  # fmt: skip
        (tmp_path / f"{name}.html").write_text(content)
        dom = subprocess.run(
            ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", f"file://{tmp_path}/{name}.html"],
            capture_output=True, text=True, timeout=120,
        ).stdout  # fmt: skip
        assert f"<title>{title}</title>" in dom, name


def test_an_untouched_cell_stays_as_it_is():
    cell = nbformat.from_dict(json.loads(json.dumps(new_code_cell("1 + 1", outputs=[new_output("stream", text="2")]))))
    clean.harmless(cell)
    assert cell.source == "1 + 1" and cell.outputs[0].text == "2"
