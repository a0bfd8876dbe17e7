"""Numbers of prose that come from a lesson's own cells: tools/shown.py."""

import ast
from pathlib import Path

import jupytext
import pytest

from tools.shown import shown

LESSONS = "content/lessons/07-lora.md", "content/lessons/09-qlora.md"
ROOT = Path(__file__).parent.parent


def test_a_cell_sees_what_is_given_and_the_cells_before_it(capsys):
    made = shown(LESSONS[0], "instants", given={"sevens": 7})
    assert made["sevens"] == 7 and callable(made["instants"]) and capsys.readouterr().out == ""


def test_a_name_that_no_code_cell_has_is_refused():
    with pytest.raises(ValueError, match=r"name is 'instant'; content/lessons/07-lora\.md has no code cell"):
        shown(LESSONS[0], "instant", given={})


def test_both_lessons_have_one_formula():
    """Lesson 09 adds a float32 head, a dequantized matrix and the optimizer without roots; unused, it is lesson 07."""

    class Model:
        n_embd, n_inner, n_layer, vocab_size = 3, 7, 5, 11

    seven, nine = (shown(path, "instants", given={})["instants"] for path in LESSONS)
    for again in (False, True):
        case = dict(n=13, N=17, block=190, s=6, again=again, copies=34)
        assert seven(Model, **case) == nine(Model, **case)
        assert seven(Model, **case) != nine(Model, **case, head=2)


@pytest.mark.parametrize("path", LESSONS)
def test_the_formula_asks_nothing_of_the_package(path):
    """What is on paper is arithmetic: the cell imports nothing and calls nothing but max."""
    cells = jupytext.reads((ROOT / path).read_text(encoding="utf8"), fmt="md:myst").cells
    (source,) = (cell.source for cell in cells if cell.metadata.get("name") == "instants")
    called = {node.func.id for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)}
    assert called <= {"max"}
