"""A figure that a notebook shows carries its words, and nbconvert's page has them as alt text."""

import nbformat
import pytest
from bs4 import BeautifulSoup
from nbclient import NotebookClient
from nbconvert import HTMLExporter

from tools.notebook_html import to_html

CELLS = (
    "import matplotlib.pyplot as plt\nfrom minigpt.memory import Ledger\nfrom minigpt.memory.plots import stacked_bars",
    "stacked_bars({'one <case>': Ledger(weights=3)}, 'a finding');",
    "axes = plt.subplots()[1]\naxes.plot([1, 2], [3, 4], label='mine')\naxes.set_title('by hand')\nplt.show()",
)


@pytest.mark.slow
def test_a_shown_figure_has_alt_text(monkeypatch, tmp_path):
    monkeypatch.delenv("MPLBACKEND", raising=False)  # the kernel's own is the inline one
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in CELLS])
    NotebookClient(notebook, kernel_name="python3").execute()
    first, second = (cell.outputs[-1] for cell in notebook.cells[1:])
    assert first.data["text/plain"].startswith("a finding. Bars in kB. one <case>: 0.00")
    assert first.metadata["image/png"]["alt"] == first.data["text/plain"] and first.data["image/png"]
    assert "mine: 3 at 1, 4 at 2" in second.data["text/plain"]
    nbformat.write(notebook, tmp_path / "shown.ipynb")
    to_html(tmp_path / "shown.ipynb", tmp_path / "shown.html")
    for page in (HTMLExporter().from_notebook_node(notebook)[0], (tmp_path / "shown.html").read_text(encoding="utf8")):
        alts = [image["alt"] for image in BeautifulSoup(page, "html.parser").find_all("img")]
        assert alts == [first.data["text/plain"], second.data["text/plain"]]
