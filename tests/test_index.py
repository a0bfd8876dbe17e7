"""The map: every notebook in it, with its own figures, and links that lead somewhere, in the course and in work/."""

from __future__ import annotations

import json
import re
import shlex

import nbformat
import pytest
from nbclient import NotebookClient

from minigpt.memory.__main__ import main as predict_command
from tests.tiny_course import HEAD, LAB
from tools import ROOT, build, index

README = (ROOT / "README.md").read_text(encoding="utf8")
CELLS = nbformat.read(ROOT / index.PAGE, as_version=4).cells
TEXT = "\n\n".join(cell.source for cell in CELLS if cell.cell_type == "markdown")
READ = HEAD.replace("minutes:", "read: 50\nminutes:") if "read:" not in HEAD else HEAD
ROW = """---
title: "The map"
---

## Map

[[ row("01", "count") ]]
[[ row("lab01", "double") ]]

[[ hours(labs) ]]
"""
LINE = re.compile(r"^\| \[[^\]]+\]\((\S+)\) \| (\d+)&nbsp;min \| ([\d.]+)&nbsp;min \| (.*) \|$", re.M)


def rows() -> dict[str, tuple[str, ...]]:
    """Minutes to read, minutes to run, and what one can do after it, by the notebook's path."""
    return {path: tuple(rest) for path, *rest in LINE.findall(TEXT)}


def test_every_notebook_has_its_row_in_the_order_of_study_with_its_own_figures():
    pages = [*ROOT.glob("lessons/[0-9]*.ipynb"), *ROOT.glob("labs/lab*/*.ipynb")]
    assert set(rows()) == {path.relative_to(ROOT).as_posix() for path in pages}
    order = [(_behind(path), path.startswith("labs")) for path in rows()]
    assert order == sorted(order)  # a lab comes right after its lesson, or after that which it waits for
    for path, (read, runs, _) in rows().items():
        ledger = json.loads((ROOT / path).read_text(encoding="utf8"))["metadata"]["ledger"]
        assert (int(read), float(runs)) == (ledger["read"], ledger["minutes"]["cpu"])
    hours = -(-sum(int(read) for read, *_ in rows().values()) // 60)
    assert f"**The whole course**, {hours} hours" in TEXT


def _behind(path: str) -> str:
    """The number of the lesson that a page is, or that a lab comes after."""
    ledger = json.loads((ROOT / path).read_text(encoding="utf8"))["metadata"]["ledger"]
    return ledger.get("after", re.search(r"(\d\d)-", path)[1])


def test_readme_says_the_same_of_each_notebook():
    for path, (*_, after) in rows().items():
        assert re.search(rf"\({re.escape(path)}\) \| {re.escape(after)} \|", README), path


def test_every_link_leads_to_a_notebook_and_to_a_heading_in_it():
    links = re.findall(r"\]\(([^)#]+)(?:#([^)]+))?\)", TEXT)
    assert sum(bool(heading) for _, heading in links) >= 3
    for path, heading in links:
        assert re.match(r"(lessons|labs)/", path)  # nothing that work/ does not have
        text = "\n".join(cell.source for cell in nbformat.read(ROOT / path, as_version=4).cells)
        headings = [line.lstrip("# ").replace(" ", "-") for line in text.splitlines() if line.startswith("#")]
        assert not heading or heading in headings, f"{path}#{heading}"


def test_its_cells_run(capsys):
    code = [cell.source for cell in CELLS if cell.cell_type == "code"]
    exec(code[0], {})
    assert re.findall(r"^(\w+) +[\d.]+ GB of [\d.]+ GB$", capsys.readouterr().out, re.M) == ["full", "lora", "qlora"]
    exec(code[1], {})
    assert re.search(r"25\.\d+ GB reserved: (probably )?does not fit the RTX 4090", capsys.readouterr().out)
    arguments = re.search(r'^!"\{sys\.executable\}" -m minigpt\.memory (.*)$', code[2], re.M)[1]
    assert predict_command(shlex.split(arguments)) == 1  # it does not fit as it stands, and says what would make it
    assert "what makes it fit, the cheapest first" in capsys.readouterr().out


@pytest.mark.slow
def test_a_kernel_runs_it_to_its_end_and_leaves_a_picture_and_no_widget():
    notebook = nbformat.read(ROOT / index.PAGE, as_version=4)
    NotebookClient(notebook, kernel_name="python3", resources={"metadata": {"path": ROOT}}).execute()
    shown = [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]
    assert len(shown) == 3 and all(shown) and "widgets" not in notebook.metadata
    assert {output.get("name", "stdout") for outputs in shown for output in outputs} == {"stdout"}  # and no stderr
    assert shown[1][0].data["text/html"].count("<svg") == 1
    assert "what makes it fit" in "".join(output.text for output in shown[2])


def test_a_tiny_course_s_map(course):
    root = course(**{"index.md": ROW, "lessons/01-tiny.md": READ, "labs/lab01-tiny.md": LAB.replace(HEAD, READ)})
    assert build.main([], root) == 0 and build.stale(root, build.build(root)) == []
    text = "\n".join(cell.source for cell in nbformat.read(root / index.PAGE, as_version=4).cells)
    [read] = set(re.findall(r"read: (\d+)", READ))
    assert f"| [Tiny](lessons/01-tiny.ipynb) | {read}&nbsp;min | 1&nbsp;min | count |" in text
    assert f"| [Tiny](labs/lab01-tiny/lab01-tiny.ipynb) | {read}&nbsp;min | 1&nbsp;min | double |" in text
    assert f"{-(-int(read) // 60)} hours" in text


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (('[[ row("lab01", "double") ]]\n', ""), "the map has no row for lab01"),
        (('"01"', '"02"'), "'02' is no notebook; there is lab01, 01"),
        (('title: "The map"', "title: ' '"), "front matter: title is ' '; it must be text"),
        (('title: "The map"', "title: 3"), "not valid MyST"),
    ],
)
def test_what_the_map_refuses(course, capsys, change, said):
    root = course(
        **{"index.md": ROW.replace(*change), "lessons/01-tiny.md": READ, "labs/lab01-tiny.md": LAB.replace(HEAD, READ)}
    )
    assert build.main([], root) == 1
    assert "content/index.md: " in (err := capsys.readouterr().err) and said in err


def test_a_course_without_a_map_has_none(course):
    root = course(**{"lessons/01-tiny.md": READ})
    assert index.make(root, build.build(root)) is None and index.PAGE not in build.build(root)
