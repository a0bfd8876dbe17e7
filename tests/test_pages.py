"""Executed notebooks as pages: where their links lead, and that every picture has words."""

import nbformat
import pytest
from bs4 import BeautifulSoup

from tools.execute import wordless
from tools.notebook_html import relink


def test_links_to_the_map_lead_to_the_report(tmp_path):
    links = '<a href="../index.ipynb">Index</a><a href="02-b.ipynb#x">b</a><a href="gone.md">c</a>'
    page = BeautifulSoup(links, "html.parser")
    relink(page, tmp_path / "lessons" / "01-a.ipynb", tmp_path / "01-a.html", {"02-b"}, "../report/index.html")
    assert [link["href"] for link in page("a")] == ["../report/index.html", "02-b.html#x"]


PNG = {"image/png": "aGk="}
PICTURES = {  # an output's data and metadata -> whether it lacks words
    "bare": (PNG, {}, True),
    "described": (PNG, {"image/png": {"alt": "Bars."}}, False),
    "described by nothing": (PNG, {"image/png": {"alt": " "}}, True),
    "image": (PNG | {"text/html": '<img alt="Bars." src="data:">'}, {}, False),
    "silent image": ({"text/html": "<img alt='' src='data:'>"}, {}, True),
    "drawn": ({"image/svg+xml": '<svg><title id="alt">A block.</title></svg>'}, {}, False),
    "drawn in silence": ({"image/svg+xml": "<svg><title></title></svg>"}, {}, True),
    "table": ({"text/html": "<table></table>", "text/plain": "1"}, {}, False),
}


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_without_words_is_a_problem(name):
    data, metadata, silent = PICTURES[name]
    output = nbformat.v4.new_output("display_data", data=data, metadata=metadata)
    cells = [nbformat.v4.new_code_cell("1", execution_count=1), nbformat.v4.new_code_cell("2", outputs=[output])]
    said = wordless(nbformat.v4.new_notebook(cells=cells))
    assert said == (["a picture without alt text: In [2]; import minigpt.memory.plots before it"] if silent else [])
