"""Where notebooks lead: every link and anchor of the course; of tiny courses, what the build links and leaves."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

import nbformat
import pytest

from tests.tiny_course import HEAD, LAB, LESSON, cells
from tools import ROOT, build, claims, glossary, links
from tools.glossary import Linker, parse

LINK = re.compile(r"(?<!!)\[(?:[^\[\]]|\[[^\[\]]*\])*\]\(([^()\s]+)\)")
TERMS = """Words.

### adapter
*Lesson 01; also: adapters, low-rank adapter*

Two matrices beside a frozen one, of one rank.

### measure
*Lesson 01; only: `measure`*

A function that measures.

### rank
*Lesson 01; also: ranks*

A number of directions, as of an adapter.
"""


def notebooks() -> dict[str, nbformat.NotebookNode]:
    paths = [*ROOT.glob("lessons/*.ipynb"), *ROOT.glob("labs/*/*.ipynb"), *ROOT.glob("solutions/*/*.ipynb")]
    paths += ROOT.glob("index.ipynb")
    return {path.relative_to(ROOT).as_posix(): nbformat.read(path, as_version=4) for path in sorted(paths)}


def prose(notebook) -> list[str]:
    """A notebook's Markdown without its code."""
    sources = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
    return [re.sub(r"^```.*?^```|`[^`\n]+`(?!\])", "", source, flags=re.S | re.M) for source in sources]


def anchors(notebook) -> set[str]:
    """The headings of a notebook, as JupyterLab and nbconvert make anchors of them."""
    return {h.strip().replace(" ", "-") for text in prose(notebook) for h in re.findall(r"^#+ (.+)$", text, re.M)}


def test_every_link_of_every_notebook_leads_somewhere():
    found, broken = notebooks(), []
    for name, notebook in found.items():
        for address in (address for text in prose(notebook) for address in LINK.findall(text)):
            parts = urlsplit(address)
            if parts.scheme:
                if not re.fullmatch(r"https://[\w.-]+\.[a-z]{2,}(/\S*)?", address):
                    broken.append((name, address))
                continue
            # a copy of lessons/ and labs/ with the index above them, as work/, keeps what stays inside these
            target = (ROOT / name).parent.joinpath(parts.path).resolve() if parts.path else ROOT / name
            to = target.relative_to(ROOT).as_posix() if target.is_relative_to(ROOT) else str(target)
            if to not in found or (to.startswith("solutions/") and not name.startswith("solutions/")):
                broken.append((name, address))
            elif parts.fragment and parts.fragment not in anchors(found[to]):
                broken.append((name, address))
    assert not broken


def test_every_notebook_leads_on_and_to_its_terms():
    for name, notebook in notebooks().items():
        if name in (glossary.PAGE, claims.PAGE, links.INDEX):
            continue
        title = notebook.cells[0].source
        lesson = re.match(r"lessons/(\d\d)", name)
        paired = not lesson or any(ROOT.glob(f"labs/lab{lesson[1]}-*"))  # a lesson may have no lab
        assert bool(re.search(r"its (lab|lesson): \[", title)) == paired and re.search(r"[←→]", title), name
        found = [a for text in prose(notebook) for a in LINK.findall(text) if "glossary.ipynb#" in a]
        assert 15 <= len(found) == len(set(found)) <= 65, name  # each term once


def test_the_glossary_names_files_that_exist():
    text = (ROOT / build.GLOSSARY).read_text(encoding="utf8")
    named = set(re.findall(r"`(minigpt/[\w/.]+)`", text))
    assert len(named) >= 4 and [path for path in named if not (ROOT / path).exists()] == []
    _, terms = parse(text)
    assert len(terms) >= 60
    for term in terms:  # one to three sentences
        assert 1 <= len(re.findall(r"[.:](?=\s|$)", term.meaning)) <= 5, term.name


def linked(text: str, page: str = "lessons/01-tiny.ipynb") -> str:
    [out] = Linker(parse(TERMS)[1]).linked([text], page)
    return out


@pytest.mark.parametrize(
    "text, expected",
    {
        "An adapter, an adapter.": "An [adapter](glossary.ipynb#adapter), an adapter.",
        "Adapters of rank 8": "[Adapters](glossary.ipynb#adapter) of [rank](glossary.ipynb#rank) 8",
        "a low-rank\nadapter": "a [low-rank\nadapter](glossary.ipynb#adapter)",
        "low-rank, ranked, RANK": "low-rank, ranked, RANK",
        "`measure` the rank": "[`measure`](glossary.ipynb#measure) the [rank](glossary.ipynb#rank)",
        "measure, `measure()`, `adapter`": "measure, `measure()`, `adapter`",
        "## The rank\n\nA rank": "## The rank\n\nA [rank](glossary.ipynb#rank)",
        "$rank$, $$\nrank\n$$, [a rank](x), ![rank](y)": "$rank$, $$\nrank\n$$, [a rank](x), ![rank](y)",
        "```\nrank\n```\n\n<summary>rank</summary>": "```\nrank\n```\n\n<summary>rank</summary>",
        "it costs \\$5 of rank, \\$6": "it costs \\$5 of [rank](glossary.ipynb#rank), \\$6",
        "### BEGIN MARK SCHEME\nrank\n### END MARK SCHEME": "### BEGIN MARK SCHEME\nrank\n### END MARK SCHEME",
        "| **rank** | `x` |": "| **[rank](glossary.ipynb#rank)** | `x` |",
    }.items(),
)
def test_a_term_is_linked_where_it_stands_first_in_prose(text, expected):
    assert linked(text) == expected


def test_links_start_where_the_notebook_lies():
    assert linked("rank", "labs/lab01-x/lab01-x.ipynb") == "[rank](../../lessons/glossary.ipynb#rank)"
    assert linked("rank", glossary.PAGE) == "[rank](#rank)"


def test_papers_are_linked():
    there = "(Hu 2021, [arXiv 2106.09685](https://arxiv.org/abs/2106.09685))"
    assert links.papers("(Hu 2021, arXiv 2106.09685)") == there
    assert links.papers("arXiv:2106.09685v2.").startswith("[arXiv:2106.09685v2](https://arxiv.org/abs/2106.09685)")
    assert links.papers("2106.09685 GB") == "2106.09685 GB"


def test_a_course_is_a_way(course):
    texts = {f"lessons/0{n}-tiny.md": LESSON.replace("Tiny", f"Lesson 0{n}") for n in (1, 2)}
    texts["lessons/01-tiny.md"] += "\nLessons 02 and 03, lesson 02 again, lab 01; `lab 01`.\n"
    root = course(**texts, **{"labs/lab01-tiny.md": LAB.replace("Tiny", "Lab 01")})
    assert build.main([], root) == 0
    first = cells(root, "lessons/01-tiny.ipynb")
    lab, student = (cells(root, f"{kind}/lab01-tiny/lab01-tiny.ipynb") for kind in ("solutions", "labs"))
    to_lab = "../labs/lab01-tiny/lab01-tiny.ipynb"
    assert first["title"].source.split("\n\n")[1] == f"[Lesson 02 →](02-tiny.ipynb) · its lab: [Lab 01]({to_lab})"
    assert "Read 45 minutes; runs in at most 1 minute on a CPU, 0.5 minutes on a GPU." in first["title"].source
    assert first["next"].source == f"Go on with [Lab 01]({to_lab}), then [Lesson 02](02-tiny.ipynb)."
    said = f"[Lessons 02](02-tiny.ipynb) and 03, lesson 02 again, [lab 01]({to_lab}); `lab 01`."
    assert said in [cell.source for cell in first.values()]
    for version in (lab, student):
        assert "its lesson: [Lesson 01](../../lessons/01-tiny.ipynb)" in version["title"].source
        assert version["next"].source == "Go on with [Lesson 02](../../lessons/02-tiny.ipynb)."
    assert "next" not in cells(root, "lessons/02-tiny.ipynb")

    waiting = (root / "content/labs/lab01-tiny.md").read_text().replace("title:", 'after: "02"\ntitle:', 1)
    (root / "content/labs/lab01-tiny.md").write_text(waiting)
    assert build.main([], root) == 0
    assert cells(root, "lessons/01-tiny.ipynb")["next"].source == "Go on with [Lesson 02](02-tiny.ipynb)."
    assert cells(root, "lessons/02-tiny.ipynb")["next"].source == f"Go on with [Lab 01]({to_lab})."


def test_the_index_is_linked_where_there_is_one(course):
    rows = '\n[[ row("01", "count") ]]\n[[ row("lab01", "count") ]]\n'
    head = "---\ntitle: The map\n---\n"
    root = course(**{"index.md": head + rows, "lessons/01-tiny.md": LESSON, "labs/lab01-tiny.md": LAB})
    notebooks = build.build(root)
    for path, way in {"lessons/01-tiny.ipynb": "../index", "labs/lab01-tiny/lab01-tiny.ipynb": "../../index"}.items():
        assert f"[Index]({way}.ipynb)" in nbformat.reads(notebooks[path], as_version=4).cells[0].source


def test_a_glossary_is_built(course):
    used = "\nAn adapter of a rank, and `measure`.\n"
    root = course(**{"glossary.md": TERMS, "lessons/01-tiny.md": LESSON + used})
    assert build.main([], root) == 0
    page = cells(root, glossary.PAGE)
    assert list(page) == ["title", "term-adapter", "term-measure", "term-rank"]
    assert page["title"].source.endswith("[adapter](#adapter) · [measure](#measure) · [rank](#rank)")
    assert page["term-rank"].source == (
        "### rank\n\nA number of directions, as of an [adapter](#adapter). *[Lesson 01](01-tiny.ipynb)*"
    )


FAULTS = {
    "unused": (TERMS, "term 'adapter': no lesson or lab uses it"),
    "not sorted": (TERMS.replace("### adapter", "### silent"), "term 'measure': it comes before 'silent'"),
    "twice": (TERMS.replace("also: ranks", "also: Adapters"), "'Adapters' is a spelling of 'adapter', too"),
    "no lesson": (TERMS.replace("*Lesson 01; also: ranks*\n", ""), "term 'rank': write *Lesson NN"),
    "another lesson": (TERMS.replace("Lesson 01; also: ranks", "Lesson 09"), "term 'rank': lesson 09; there is 01"),
    "no name": (TERMS.replace("### rank", "### `rank`"), "term '`rank`': a name is letters"),
}


@pytest.mark.parametrize("why", FAULTS)
def test_a_glossary_that_breaks_a_rule_is_refused(course, capsys, why):
    text, words = FAULTS[why]
    uses = "" if why == "unused" else "\nAn adapter of a rank, `measure`.\n"
    assert build.main([], course(**{"glossary.md": text, "lessons/01-tiny.md": LESSON + uses})) == 1
    [said] = capsys.readouterr().err.splitlines()
    assert said.startswith("tools.build: content/glossary.md: ") and words in said


def test_a_notebook_that_travels_alone_keeps_the_words():
    text = "[a `b`](../x.ipynb#y), [c](https://x.org), ![d](e.png), [f](#g)"
    assert links.unlinked(text) == "a `b`, [c](https://x.org), ![d](e.png), [f](#g)"


def test_folded_cells_fold_in_jupyterlab(course):
    code = "x = 1\n" * 16
    text = f"\n```{{code-cell}}\n:tags: [hide-input]\n\n{code}```\n\n```{{code-cell}}\ny = 0\n```\n"
    root = course(**{"lessons/01-tiny.md": HEAD + text})
    assert build.main([], root) == 0
    folded, shown = list(cells(root, "lessons/01-tiny.ipynb").values())[2:]
    assert folded.metadata["jupyter"] == {"source_hidden": True} and "jupyter" not in shown.metadata


def test_text_after_a_folded_answer_is_a_cell_of_its_own(course):
    text = "\n<details><summary>Answer</summary>\n\nTwo.\n\n</details>\n\nOn it goes.\n"
    root = course(**{"lessons/01-tiny.md": HEAD + text})
    assert build.main([], root) == 0
    answer, after = list(cells(root, "lessons/01-tiny.ipynb").values())[2:]
    assert answer.source.endswith("</details>") and after.source == "On it goes."
