"""A bank, read: an edit changes the instructor's solution and nothing else; what cannot be read names its line."""

import pytest

from tools.bank_entries import Entry, read_bank

SOLUTION = '''\
def area(side):
    """side * side"""
    ### BEGIN SOLUTION
    half = side / 2
    return 4 * half * half
    ### END SOLUTION


def border(side):
    ### BEGIN SOLUTION
    return 4 * side  # all four
    ### END SOLUTION
'''


def read(tmp_path, text: str) -> list[Entry]:
    path = tmp_path / "lab01-x.bank.py"
    path.write_text(text, encoding="utf8")
    return read_bank(path, {"area": SOLUTION, "other": ""})


@pytest.mark.parametrize(
    "edits, changed",
    [
        (["`side / 2` => `side / 3`"], [("half = side / 2", "half = side / 3")]),
        (["`  # all four` => ``"], [("side  # all four", "side")]),
        (["`4 * half` => `4 * side`", "`/ 2` => `/ 4`"], [("4 * half", "4 * side"), ("/ 2", "/ 4")]),
        (
            ["`half * half` => `side`", "`side /` => `half * half /`"],
            [("half * half", "side"), ("side /", "half * half /")],
        ),
        (["every `4 *` => `3 *`"], [("4 * half", "3 * half"), ("4 * side", "3 * side")]),
        (["every `side` => `edge`"], [("= side", "= edge"), ("4 * side", "4 * edge")]),  # not the signatures
    ],
)
def test_an_edit_changes_the_solution(tmp_path, edits, changed):
    expected = SOLUTION
    for old, new in changed:
        expected = expected.replace(old, new)
    lines = "\n".join(f"#     {edit}" for edit in edits)
    assert read(tmp_path, f"# %% area\n# wrong: it -> this+that, keeps 1.5\n{lines}\n") == [
        Entry("area", "it", expected, frozenset({"this", "that"}), 1.5)
    ]


def test_a_whole_answer_stands_as_it_is_written(tmp_path):
    wrong = "# wrong: 2 -> 3 -> raises\nx = 1  # one\n\n\n"
    assert read(tmp_path, f"# of lab 01\n\n# %% area\n{wrong}# right: with: a colon\n\ny = 2\n# %% other\n") == [
        Entry("area", "2 -> 3", "x = 1  # one\n", frozenset({"raises"})),
        Entry("area", "with: a colon", "y = 2\n"),
    ]


EDIT = "# %% area\n# wrong: x -> y\n"


@pytest.mark.parametrize(
    "text, says",
    [
        ("x = 1\n", "line 1: it has no section"),
        ("# what it is\nimport torch\n# %% area\n", "line 2: an answer begins with a line of its own"),
        ("# %% circle\n", "line 1: there is no exercise 'circle'; there is area, other"),
        ("#%% area\n", "line 1: write '# %% EXERCISE'"),
        ("# %% area\nx = 1\n", "line 1: the first answer of a section must follow at once"),
        ("\n# wrong: x -> y\nx = 1\n", "line 2: write '# %% EXERCISE'"),
        ("# %% area\n# wrong: x\nx = 1\n", "line 2: write .* '# wrong: TITLE -> VERDICT'"),
        ("# %% area\n# wrong: x -> A sentence\nx = 1\n", "line 2: write .* VERDICT"),
        ("# %% area\n# wrong: x -> y, keeps many\nx = 1\n", "line 2: write .* VERDICT"),
        ("# %% area\n# right: x -> y\nx = 1\n", "line 2: write .* '# right: TITLE'"),
        ("# %% area\n#wrong: x -> y\nx = 1\n", "line 2: write"),
        ("# %% area\n# right: x\nx = 1\n  # Wrong : y\n", "line 4: write"),
        ("# %% area\n# wrong: x -> y\n\n# right: z\nz = 1\n", "line 2: no answer follows"),
        ("# %% area\n# right: x\n#     `2` => `3`\n", "line 2: a right answer is written as a whole"),
        (EDIT + "#     `2` => `3`\nx = 1\n", "line 4: write '#     `OLD` => `NEW`', and no code"),
        (EDIT + "#     `2` -> `3`\n", "line 3: write '#     `OLD` => `NEW`'"),
        (EDIT + "\n#     `5` => `6`\n", "line 4: `5` is in the solution 0 times; it must be there once"),
        (EDIT + "#     `4` => `6`\n", "line 3: `4` is in the solution 2 times; .* 'every' is said"),
        (EDIT + "#     `def area` => `def b`\n", "line 3: `def area` is in the solution 0 times"),
        (EDIT + "#     every `5` => `6`\n", "line 3: `5` is in the solution 0 times"),
        (
            EDIT + "#     every `/ 2` => `6`\n",
            "line 3: `/ 2` is in the solution 1 times; .* more than once after 'every'",
        ),
        (EDIT + "#     `/ 2` => `/ 2`\n", "line 3: `/ 2` => `/ 2` changes nothing"),
        (EDIT + "#     `/ 2` => `/ 3`\n#     `/ 2` => `/ 4`\n", "line 4: `/ 2` is edited twice"),
        (EDIT + "#     `side / 2` => `1`\n#     `half = side` => `1`\n", "line 2: two edits meet in the same text"),
    ],
)
def test_a_broken_bank_is_refused_with_its_line(text, says, tmp_path):
    with pytest.raises(ValueError, match=f"lab01-x.bank.py, {says}"):
        read(tmp_path, text)
