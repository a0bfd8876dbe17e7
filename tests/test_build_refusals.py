"""Texts that the build refuses, each in one sentence that names the file and the fault."""

from __future__ import annotations

import pytest

from tests.tiny_course import CHECK, EXERCISE, HEAD, LAB, LESSON, TASK, names
from tools import build

TWO = EXERCISE.replace("double", "triple")
REFUSALS = {
    "a name twice": (EXERCISE + CHECK + CHECK, "'check-double': the name is taken"),
    "a reserved name": (EXERCISE + CHECK.replace("check-double", "title"), "'title': the name is taken"),
    "a solution outside": (
        EXERCISE.replace(":tags: [exercise]", "") + CHECK,
        "SOLUTION region outside a cell tagged ex",
    ),
    "a hidden test outside": (
        EXERCISE + CHECK.replace(":tags: [check]\n:points: 2\n", ""),
        "HIDDEN TESTS region outside",
    ),
    "a mark scheme outside": ("\n### BEGIN MARK SCHEME\nx\n### END MARK SCHEME\n", "MARK SCHEME region outside"),
    "an open region": (EXERCISE.replace("### END SOLUTION", "") + CHECK, "1 BEGIN SOLUTION and 0 END SOLUTION"),
    "no check": (EXERCISE, "'double': an exercise without a check"),
    "a check with a value at its top": (
        EXERCISE + CHECK.replace("\n\n@checks", "\nright = 4\n\n@checks"),
        "'check-double': a check cell is `from minigpt import checks` and one function below it",
    ),
    "a check with another import": (EXERCISE + CHECK.replace("import checks", "import checks, model"), "one function"),
    "a check that nobody runs": (EXERCISE + CHECK.replace("@checks.check\n", ""), "check_double needs @checks.check"),
    "a check of another name": (
        EXERCISE + CHECK.replace("f check_d", "f test_d"),
        "its function is test_double; it is",
    ),
    "a check with a default": (EXERCISE + CHECK.replace("(double)", "(double=3)"), "none has a default"),
    "a check of everything": (EXERCISE + CHECK.replace("(double)", "(*double)"), "none is *args or **kwargs"),
    "a check of nothing": (EXERCISE + CHECK.replace("(double)", "()"), "check_double has no parameter"),
    "a check without an end": (
        EXERCISE + CHECK.replace("with checks.judging", "with open"),
        "ends in `return checks.score(...)`",
    ),
    "a check that stays": (
        EXERCISE + CHECK.replace("    with ", "    global right\n    with "),
        "check_double has a global",
    ),
    "a check too late": (EXERCISE + TWO + CHECK, "'double': an exercise without a check"),
    "no points": (EXERCISE + CHECK.replace(":points: 2\n", ""), "'check-double': points is None"),
    "half points": (EXERCISE + CHECK.replace(": 2\n", ": 0.5\n"), "points is 0.5"),
    "points on an exercise": (EXERCISE.replace(":tags", ":points: 1\n:tags") + CHECK, "'double': points on a cell"),
    "no solution": (
        EXERCISE.replace("### BEGIN SOLUTION", "").replace("### END SOLUTION", "") + CHECK,
        "nothing to clear",
    ),
    "no name": (EXERCISE.replace(":name: double\n", "") + CHECK, "without a name"),
    "a bad name": (EXERCISE.replace(":name: double", ":name: Double It") + CHECK, "'Double It': a name is lower-case"),
    "an unknown tag": (EXERCISE.replace("[exercise]", "[exercize]") + CHECK, "tag 'exercize'; allowed: exercise"),
    "an unknown option": (EXERCISE.replace(":name", ":nom: x\n:name") + CHECK, "option 'nom'; allowed: name, tags"),
    "a task in code": (EXERCISE + CHECK.replace("check]", "task]"), "tagged task, on a code cell"),
    "two parameter cells": (
        "\n```{code-cell}\n:tags: [parameters]\nA = 1\n```\n" * 2,
        "two cells are tagged parameters",
    ),
    "a long cell": ("\n```{code-cell}\n" + "x = 1\n" * 46 + "```\n", "46 lines; a code cell has at most 45"),
    "a wall": ("\n```{code-cell}\ny = 0\n" + "x = 1\n" * 15 + "```\n", "'y = 0': it shows 16 lines, of 15 at most"),
    "a second title": ("\n# Title\n", "a heading with one #"),
    "a failing placeholder": ("\nIt is [[ 1 / 0 ]].\n", "line 8: [[ 1 / 0 ]] fails: ZeroDivisionError"),
    "a lost S": (
        EXERCISE + CHECK.replace("HIDDEN TESTS", "HIDDEN TEST"),
        "'### BEGIN HIDDEN TEST' looks like a region",
    ),
    "lower case": (
        EXERCISE + CHECK.replace("BEGIN HIDDEN TESTS", "begin hidden tests").replace("END", "end"),
        "a region",
    ),
    "no space": (
        EXERCISE + CHECK + TASK.replace("### BEGIN MARK SCHEME", "###BEGIN MARKSCHEME"),
        "looks like a region",
    ),
    "an open cell": (
        "\n```{code-cell}\nx = 1\n\nProse.\n\n```{code-cell}\ny = 2\n```\n",
        "a code cell above is not closed",
    ),
    "a misspelt cell": ("\n```{code-cel}\nx = 1\n```\n", "'```{code-cel}' inside it"),
    "broken Python": (
        "\n```{code-cell}\nx = (\n```\n",
        "cell starting 'x = (': not Python: '(' was never closed (line 1)",
    ),
    "an answer's name": (TASK + CHECK.replace("check-double", "explain-answer"), "'explain-answer': the name is taken"),
    "the name of an answer": (CHECK.replace("check-double", "explain-answer") + TASK, "'explain': the name is taken"),
    "no spaces": ("\nIt is [[1+1]].\n", "line 8: 'It is [[1+1]].' is no placeholder"),
    "one space": ("\nIt is [[ 1+1]].\n", "line 8: 'It is [[ 1+1]].' is no placeholder"),
    "two lines": ("\nIt is [[ 1 +\n1 ]].\n", "line 8: 'It is [[ 1 +' is no placeholder"),
    "an open placeholder": ("\nIt is [[ 1 + 1\n", "line 8: 'It is [[ 1 + 1' is no placeholder"),
    "an exit": ("\nIt is [[ exit(0) ]].\n", "line 8: [[ exit(0) ]] fails: SystemExit: 0"),
    "a silent picture": ("\nSee ![](a.svg).\n", "'![](' is a picture without alt text"),
    "a silent image": ("\n<img src='a.png' alt=''>\n", "'<img' is a picture without alt text"),
    "a float": ("\n\nIt is [[ 0.5 ]].\n", "line 9: [[ 0.5 ]] is a float; allowed: text or a whole number"),
}


@pytest.fixture
def refused(course, capsys):
    """A function that builds a course of given texts, which must fail, and returns the one sentence that says why."""

    def refuse(**texts: str) -> str:
        root = course(**texts)
        assert build.main([], root) == 1 and not names(root)
        [said] = capsys.readouterr().err.splitlines()
        return said

    return refuse


@pytest.mark.parametrize("why", REFUSALS)
def test_refusals(refused, why):
    body, words = REFUSALS[why]
    said = refused(**{"labs/lab01-tiny.md": HEAD + body})
    assert said.startswith("tools.build: content/labs/lab01-tiny.md: ") and words in said


FRONT_MATTER = {
    "no title": ("title: Tiny\n", "", "title is None"),
    "no budget": ("minutes: {cpu: 1, gpu: 0.5}\n", "", "minutes is None; write minutes: {cpu: N, gpu: N}"),
    "no time to read": ("read: 45\n", "", "read is None; write the minutes that reading takes"),
    "half a budget": ("{ram: 1, vram: 2}", "{ram: 1}", "memory_gb is {'ram': 1}"),
    "a negative budget": ("cpu: 1", "cpu: -1", "minutes cpu is -1"),
    "an unknown entry": ("title:", "author: me\ntitle:", "'author'; allowed: title"),
    "torch on Colab": ("title:", "colab: [torch]\ntitle:", "colab has 'torch'"),
    "numbered minutes": ("{cpu: 1, gpu: 0.5}", "{1: 1, gpu: 0.5}", "minutes is {1: 1, 'gpu': 0.5}; write"),
    "no end of minutes": ("cpu: 1", "cpu: .inf", "minutes cpu is inf"),
    "an empty title": ("title: Tiny", "title: ' '", "title is ' '; it must be text"),
    "not alone": ("title:", "alone: false\ntitle:", "alone is False; write alone: true, or nothing"),
    "after a number": ("title:", "after: 6\ntitle:", "after is 6; write a lesson's two digits"),
    "broken YAML": ("{cpu: 1,", "{cpu: 1", "not valid MyST"),
}  # fmt: skip


@pytest.mark.parametrize("why", FRONT_MATTER)
def test_front_matter_refusals(refused, why):
    old, new, words = FRONT_MATTER[why]
    said = refused(**{"lessons/01-tiny.md": HEAD.replace(old, new)})
    assert said.startswith("tools.build: content/lessons/01-tiny.md: ") and words in said


NUMBERS = {
    "a name that the prose alone knows": ("a = 1\n", "line 8: [[ b ]] fails: NameError: name 'b' is not defined"),
    "a name that nobody uses": ("a = 1\nb = c = a\n", "01-tiny.numbers.py, line 2: no placeholder uses 'c'"),
    "one that a function uses for its own": (
        "a = b = 1\ndef f():\n    a = 2\n", "01-tiny.numbers.py, line 1: no placeholder uses 'a'"
    ),
    "a function that nobody calls": ("b = 1\ndef f():\n    return b\n", "line 2: no placeholder uses 'f'"),
    "an import for nothing": ("from math import log, gcd as b\nb = b(2, 3)\n", "line 1: no placeholder uses 'log'"),
    "a name that is not imported": ("b = GB\n", "01-tiny.numbers.py, line 1: 'b = GB' fails: NameError"),
    "a figure that moved": ("b = 1\nassert b == 2\n", "line 2: 'assert b == 2' fails: AssertionError"),
    "an error deeper": ("def f():\n    return 1 / 0\nb = f()\n", "line 2: 'return 1 / 0' fails: ZeroDivisionError"),
    "no Python": ("b = 1\na = (\n", "01-tiny.numbers.py, line 2: 'a = (' fails: SyntaxError: '(' was never closed"),
    "an end": ("raise SystemExit(3)\n", "line 1: 'raise SystemExit(3)' fails: SystemExit: 3"),
}  # fmt: skip


@pytest.mark.parametrize("why", NUMBERS)
def test_numbers_are_refused(refused, why):
    numbers, words = NUMBERS[why]
    said = refused(**{"lessons/01-tiny.md": HEAD + "\nIt is [[ b ]].\n", "lessons/01-tiny.numbers.py": numbers})
    assert said.startswith("tools.build: content/lessons/01-tiny.md: ") and words in said


def test_numbers_without_a_text_are_refused(refused):
    said = refused(**{"lessons/01-tiny.md": LESSON, "lessons/02-tiny.numbers.py": "a = 1"})
    assert "content/lessons/02-tiny.numbers.py: there is no text of this name" in said


def test_graded_cells_stay_out_of_lessons(refused):
    assert "graded cells belong to a lab" in refused(**{"lessons/01-tiny.md": HEAD + EXERCISE + CHECK})


def test_a_file_name_out_of_order_is_refused(refused):
    assert "content/labs/first.md: the name must be labNN-name.md" in refused(**{"labs/first.md": LAB})


PROJECTS = {
    "no project": ("x = 1", "has no [project]"),
    "no TOML": ("x =", "pyproject.toml: Invalid value"),
    "a number": ("[project.urls]\nRepository = 5", "Repository is 5; allowed: https://github.com/OWNER/NAME"),
    "no table": ("[project]\nurls = 5", "project.urls is 5"),
}


@pytest.mark.parametrize("why", PROJECTS)
def test_a_broken_setting_is_one_sentence(refused, why):
    text, words = PROJECTS[why]
    said = refused(**{"lessons/01-tiny.md": LESSON, "../pyproject.toml": text})
    assert said.startswith("tools.build: pyproject.toml") and words in said
