"""The build on tiny courses, with nbgrader itself as the judge of what it makes; and the real course's freshness."""

from __future__ import annotations

import json
import re

import nbformat
import pytest
from nbgrader.nbgraderformat import MetadataValidator

from minigpt.memory.families import Architecture
from tools import ROOT, bank, build, settings

HEAD = """---
title: Tiny
minutes: {cpu: 1, gpu: 0.5}
memory_gb: {ram: 1, vram: 2}
---
"""
EXERCISE = """
```{code-cell}
:name: double
:tags: [exercise]

def double(x):
    ### BEGIN SOLUTION
    return 2 * x  # the secret answer
    ### END SOLUTION
```
"""
CHECK = """
```{code-cell}
:name: check-double
:tags: [check]
:points: 2

assert double(2) == 4
### BEGIN HIDDEN TESTS
assert double(3) == 6  # the secret test
### END HIDDEN TESTS
```
"""
TASK = """
+++ {"name": "explain", "tags": ["task"], "points": 3}

Why?

### BEGIN MARK SCHEME
The secret mark scheme.
### END MARK SCHEME

+++

The end.
"""
LAB = HEAD + "\n## Part 1\n" + EXERCISE + CHECK + TASK
LESSON = HEAD + "\n## Counting\n\n```{code-cell}\n1 + 1\n```\n\n```{code-cell}\n1 + 1\n```\n"


def names(root):
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*.ipynb")}


def cells(root, path):
    return {cell.id: cell for cell in nbformat.read(root / path, as_version=4).cells}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A course of one lesson and one lab, built."""
    root = tmp_path_factory.mktemp("course")
    for name, text in {"lessons/01-tiny": LESSON, "labs/lab01-tiny": LAB}.items():
        path = root / "content" / f"{name}.md"
        path.parent.mkdir(parents=True)
        path.write_text(text)
    for name in ("pyproject.toml", "constraints.txt"):
        (root / name).write_bytes((ROOT / name).read_bytes())
    assert build.main([], root) == 0
    return root


@pytest.mark.slow
def test_the_course_is_fresh():
    changes = build.stale(ROOT, build.build(ROOT))
    assert not changes, "run `make notebooks` and commit what it changes"


def test_the_same_text_gives_the_same_bytes(built):
    before = names(built)
    assert sorted(before) == [
        "labs/lab01-tiny/lab01-tiny.ipynb",
        "lessons/01-tiny.ipynb",
        "solutions/lab01-tiny/lab01-tiny.ipynb",
    ]
    assert {path: text.encode() for path, text in build.build(built).items()} == before
    for content in before.values():
        assert content.endswith(b"}\n")
        assert json.dumps(json.loads(content), indent=1, sort_keys=True, ensure_ascii=False).encode() + b"\n" == content


@pytest.mark.slow
def test_nbgrader_generates_the_same_release(built, tmp_path):
    from nbgrader.apps import GenerateAssignmentApp
    from traitlets.config import PyFileConfigLoader

    source = "solutions/lab01-tiny/lab01-tiny.ipynb"
    (tmp_path / source).parent.mkdir(parents=True)
    (tmp_path / source).write_bytes((built / source).read_bytes())
    app = GenerateAssignmentApp(config=PyFileConfigLoader("nbgrader_config.py", path=str(ROOT)).load_config())
    app.config.CourseDirectory.root = str(tmp_path)
    app.config.CourseDirectory.db_url = f"sqlite:///{tmp_path / 'gradebook.db'}"
    app.initialize(["lab01-tiny", "--force"])
    app.start()
    path = "labs/lab01-tiny/lab01-tiny.ipynb"
    assert (tmp_path / path).read_text() == (built / path).read_text()


@pytest.mark.parametrize("version", ["solutions", "labs"])
def test_metadata_is_what_nbgrader_wants(built, version):
    notebook = nbformat.read(built / version / "lab01-tiny/lab01-tiny.ipynb", as_version=4)
    nbformat.validate(notebook)
    MetadataValidator().validate_nb(notebook)
    kinds = {cell.id: cell.metadata.nbgrader for cell in notebook.cells if "nbgrader" in cell.metadata}
    assert list(kinds) == ["double", "check-double", "explain"]
    assert kinds["double"].solution and not kinds["double"].grade and "points" not in kinds["double"]
    assert kinds["check-double"].grade and kinds["check-double"].locked and kinds["check-double"].points == 2
    assert kinds["explain"].task and kinds["explain"].points == 3
    assert notebook.metadata.ledger.points == 5 and notebook.metadata.ledger.minutes.gpu == 0.5
    assert notebook.metadata.kernelspec.name == "python3"


def test_the_release_keeps_its_secrets(built):
    source, student = (
        (built / version / "lab01-tiny/lab01-tiny.ipynb").read_text() for version in ("solutions", "labs")
    )
    for secret in ("the secret answer", "the secret test", "secret mark scheme"):
        assert secret in source and secret not in student
    assert "BEGIN" not in student


def test_the_release_raises_where_the_solution_was(built):
    exercise = cells(built, "labs/lab01-tiny/lab01-tiny.ipynb")["double"].source
    space = {}
    exec(exercise, space)
    with pytest.raises(NotImplementedError):
        space["double"](2)
    exec(cells(built, "solutions/lab01-tiny/lab01-tiny.ipynb")["double"].source, space)
    assert space["double"](2) == 4


def test_ids_change_only_with_their_own_cell(course):
    root = course(**{"lessons/01-tiny": LESSON})
    assert build.main([], root) == 0
    before = set(cells(root, "lessons/01-tiny.ipynb"))
    path = root / "content/lessons/01-tiny.md"
    path.write_text(path.read_text().replace("## Counting", "## Counting to two"))
    assert build.main([], root) == 0
    after = set(cells(root, "lessons/01-tiny.ipynb"))
    assert len(before) == len(after) == 5 and len(before - after) == 1


def test_stale_notebooks_are_found_and_renewed(course, capsys):
    root = course(**{"lessons/01-tiny": LESSON, "lessons/02-gone": LESSON})
    assert build.main(["--check"], root) == 1
    assert not (root / "lessons").exists()  # --check writes nothing
    assert build.main([], root) == 0 and build.main(["--check"], root) == 0

    (root / "content/lessons/02-gone.md").unlink()
    path = root / "lessons/01-tiny.ipynb"
    path.write_text(path.read_text().replace("Counting", "Mounting"))
    capsys.readouterr()
    assert build.main(["--check"], root) == 1
    assert capsys.readouterr().err.splitlines()[:2] == ["stale: lessons/01-tiny.ipynb", "stale: lessons/02-gone.ipynb"]
    assert build.main([], root) == 0 and build.main(["--check"], root) == 0
    assert list(names(root)) == ["lessons/01-tiny.ipynb"]


def test_only_changed_files_are_written(course, capsys):
    root = course(**{"lessons/01-tiny": LESSON, "lessons/02-tiny": LESSON})
    build.main([], root)
    stamps = {name: (root / name).stat().st_mtime_ns for name in names(root)}
    (root / "content/lessons/02-tiny.md").write_text(LESSON + "\nMore.\n")
    build.main([], root)
    changed = [name for name in stamps if (root / name).stat().st_mtime_ns != stamps[name]]
    assert changed == ["lessons/02-tiny.ipynb"]


def test_work_is_not_overwritten(course, capsys):
    root = course(**{"lessons/01-tiny": LESSON})
    build.main([], root)
    path = root / "lessons/01-tiny.ipynb"
    notebook = nbformat.read(path, as_version=4)
    notebook.cells[-1].execution_count = 1
    nbformat.write(notebook, path)
    worked_in = path.read_bytes()
    assert build.main([], root) == 1 and path.read_bytes() == worked_in
    assert "01-tiny.ipynb was run or made by hand" in capsys.readouterr().err
    assert build.main(["--force"], root) == 0 and path.read_bytes() != worked_in

    by_hand = root / "lessons/mine.ipynb"
    nbformat.write(nbformat.v4.new_notebook(), by_hand)
    assert build.main([], root) == 1 and by_hand.exists()


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
    "a second title": ("\n# Title\n", "a heading with one #"),
    "a failing placeholder": ("\nIt is [[ 1 / 0 ]].\n", "line 7: [[ 1 / 0 ]] fails: ZeroDivisionError"),
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
    "no spaces": ("\nIt is [[1+1]].\n", "line 7: 'It is [[1+1]].' is no placeholder"),
    "one space": ("\nIt is [[ 1+1]].\n", "line 7: 'It is [[ 1+1]].' is no placeholder"),
    "two lines": ("\nIt is [[ 1 +\n1 ]].\n", "line 7: 'It is [[ 1 +' is no placeholder"),
    "an open placeholder": ("\nIt is [[ 1 + 1\n", "line 7: 'It is [[ 1 + 1' is no placeholder"),
    "an exit": ("\nIt is [[ exit(0) ]].\n", "line 7: [[ exit(0) ]] fails: SystemExit: 0"),
    "a float": ("\n\nIt is [[ 0.5 ]].\n", "line 8: [[ 0.5 ]] is a float; allowed: text or a whole number"),
}


@pytest.mark.parametrize("why", REFUSALS)
def test_refusals(course, capsys, why):
    body, words = REFUSALS[why]
    root = course(**{"labs/lab01-tiny": HEAD + body})
    assert build.main([], root) == 1
    said = capsys.readouterr().err
    assert (
        said.startswith("tools.build: content/labs/lab01-tiny.md: ") and words in said and len(said.splitlines()) == 1
    )
    assert not names(root)


FRONT_MATTER = {
    "no title": ("title: Tiny\n", "", "title is None"),
    "no budget": ("minutes: {cpu: 1, gpu: 0.5}\n", "", "minutes is None; write minutes: {cpu: N, gpu: N}"),
    "half a budget": ("{ram: 1, vram: 2}", "{ram: 1}", "memory_gb is {'ram': 1}"),
    "a negative budget": ("cpu: 1", "cpu: -1", "minutes cpu is -1"),
    "an unknown entry": ("title:", "author: me\ntitle:", "'author'; allowed: title"),
    "torch on Colab": ("title:", "colab: [torch]\ntitle:", "colab has 'torch'"),
    "numbers fail": ("title:", "numbers: |\n  a = 1\n  b = c\ntitle:", "line 4: the numbers block fails at 'b = c'"),
    "numbers do not parse": ("title:", "numbers: |\n  a = (\ntitle:", "line 3: the numbers block fails at 'a = ('"),
    "numbers exit": ("title:", "numbers: |\n  raise SystemExit(3)\ntitle:", "line 3: the numbers block fails at"),
    "numbered minutes": ("{cpu: 1, gpu: 0.5}", "{1: 1, gpu: 0.5}", "minutes is {1: 1, 'gpu': 0.5}; write"),
    "no end of minutes": ("cpu: 1", "cpu: .inf", "minutes cpu is inf"),
    "an empty title": ("title: Tiny", "title: ' '", "title is ' '; it must be text"),
    "broken YAML": ("{cpu: 1,", "{cpu: 1", "not valid MyST"),
}  # fmt: skip


@pytest.mark.parametrize("why", FRONT_MATTER)
def test_front_matter_refusals(course, capsys, why):
    old, new, words = FRONT_MATTER[why]
    root = course(**{"lessons/01-tiny": HEAD.replace(old, new)})
    assert build.main([], root) == 1
    said = capsys.readouterr().err
    assert (
        said.startswith("tools.build: content/lessons/01-tiny.md: ") and words in said and len(said.splitlines()) == 1
    )


def test_graded_cells_stay_out_of_lessons(course, capsys):
    root = course(**{"lessons/01-tiny": HEAD + EXERCISE + CHECK})
    assert build.main([], root) == 1
    assert "graded cells belong to a lab" in capsys.readouterr().err


def test_a_file_name_out_of_order_is_refused(course, capsys):
    assert build.main([], course(**{"labs/first": LAB})) == 1
    assert "content/labs/first.md: the name must be labNN-name.md" in capsys.readouterr().err


def test_nothing_else_is_released(course, capsys):
    root = course(**{"labs/lab01-tiny": LAB})
    (root / "content/labs/lab01-tiny.bank.py").write_text("wrong = ['3 * x']")
    assert build.main([], root) == 0
    assert not list(root.glob("labs/**/*.py")) and not list(root.glob("solutions/**/*.py"))
    (root / "solutions/lab01-tiny/helper.py").write_text("answer = 42")
    assert build.main([], root) == 1
    assert "solutions/lab01-tiny/helper.py: move it away" in capsys.readouterr().err


def test_the_example_of_the_guide_builds(course):
    guide = (ROOT / "content" / "README.md").read_text()
    root = course(**{"labs/lab01-count": re.search(r"````markdown\n(.*?)````", guide, re.DOTALL)[1]})
    assert build.main([], root) == 0
    text = "\n".join(cell.source for cell in cells(root, "labs/lab01-count/lab01-count.ipynb").values())
    assert "NotImplementedError" in text and "micro" not in text and "[[" not in text
    lab = bank.Lab(root / "content/labs/lab01-count.md", root)
    assert lab.run("count-minigpt", lab.answers["count-minigpt"]) == bank.Outcome(2)
    assert lab.run("count-minigpt", lab.untouched["count-minigpt"]).points == 0


def test_an_unwritable_folder_is_one_sentence(course, capsys):
    root = course(**{"lessons/01-tiny": LESSON})
    (root / "lessons").write_text("a file where the folder should be")
    assert build.main([], root) == 1
    said = capsys.readouterr().err
    assert said.startswith("tools.build: ") and "lessons" in said and len(said.splitlines()) == 1


def test_placeholders(course):
    numbers = 'numbers: |\n  llama = Architecture.of("llama-7b")\n  table = [[1, 2]]\ntitle:'
    text = """
It has [[ llama.parameters ]] parameters, [[ gb(2 * llama.parameters) ]], [[ table[0][1] ]] or [[ 'two' ]].
The interval $[[0, 1]]$, `[[0]]` and the [[link]](#a) stay.

```{code-cell}
a = [[ 1 ]]
```
"""
    root = course(**{"lessons/01-tiny": HEAD.replace("title:", numbers) + text})
    assert build.main([], root) == 0
    prose, code = list(cells(root, "lessons/01-tiny.ipynb").values())[2:]
    parameters = Architecture.of("llama-7b").parameters
    assert prose.source == (
        f"It has {parameters:,} parameters, {2 * parameters / 1e9:.2f} GB, 2 or two.\n"
        "The interval $[[0, 1]]$, `[[0]]` and the [[link]](#a) stay."
    )
    assert code.source == "a = [[ 1 ]]"


def test_magics_and_a_byte_order_mark_are_no_fault(course):
    body = "\n```{code-cell}\n%matplotlib inline\nfiles = !ls\n```\n"
    root = course(**{"lessons/01-tiny": "\ufeff" + HEAD + body})
    assert build.main([], root) == 0
    assert list(cells(root, "lessons/01-tiny.ipynb").values())[-1].source == "%matplotlib inline\nfiles = !ls"


PROJECTS = {
    "no project": ("x = 1", "has no [project]"),
    "no TOML": ("x =", "pyproject.toml: Invalid value"),
    "a number": ("[project.urls]\nRepository = 5", "Repository is 5; allowed: https://github.com/OWNER/NAME"),
    "no table": ("[project]\nurls = 5", "project.urls is 5"),
}


@pytest.mark.parametrize("why", PROJECTS)
def test_a_broken_setting_is_one_sentence(course, capsys, why):
    text, words = PROJECTS[why]
    root = course(**{"lessons/01-tiny": LESSON})
    (root / "pyproject.toml").write_text(text)
    assert build.main([], root) == 1
    said = capsys.readouterr().err
    assert said.startswith("tools.build: pyproject.toml") and words in said and len(said.splitlines()) == 1


@pytest.mark.parametrize("ledger", [None, 5, ["source"]])
def test_a_notebook_of_somebody_elses_is_not_overwritten(course, capsys, ledger):
    root = course(**{"lessons/01-tiny": LESSON})
    (root / "lessons").mkdir()
    theirs = json.dumps({"cells": [], "metadata": {"ledger": ledger}, "nbformat": 4, "nbformat_minor": 5})
    (root / "lessons/01-tiny.ipynb").write_text(theirs)
    assert build.main([], root) == 1 and (root / "lessons/01-tiny.ipynb").read_text() == theirs
    assert "was run or made by hand" in capsys.readouterr().err


def test_the_first_cells_without_an_address(built):
    for path, name in {"lessons/01-tiny.ipynb": "01-tiny", "labs/lab01-tiny/lab01-tiny.ipynb": "lab01-tiny"}.items():
        title, bootstrap = list(cells(built, path).values())[:2]
        assert f"upload `build/colab/{name}.ipynb`" in title.source and "https://" not in title.source
        assert "pip" not in bootstrap.source


def test_the_badge_appears_with_the_address(course, capsys):
    root = course(**{"labs/lab01-tiny": LAB})
    setting = root / "pyproject.toml"
    setting.write_text(setting.read_text() + '\n[project.urls]\nRepository = "https://github.com/owner/course"\n')
    project = setting.read_text().replace("[project.urls]\n# The one", "# The one", 1)
    setting.write_text(project)
    assert build.main([], root) == 0
    title, bootstrap = list(cells(root, "labs/lab01-tiny/lab01-tiny.ipynb").values())[:2]
    page = "https://colab.research.google.com/github/owner/course/blob/main/labs/lab01-tiny/lab01-tiny.ipynb"
    assert f"]({page})" in title.source and "make colab" not in title.source
    assert '"git+https://github.com/owner/course"' in bootstrap.source and '"--no-deps"' in bootstrap.source

    setting.write_text(project.replace("https://github.com/owner/course", "https://example.org/course"))
    assert build.main([], root) == 1
    assert "Repository is 'https://example.org/course'" in capsys.readouterr().err
    assert settings.repository(ROOT) is None or settings.GITHUB.fullmatch(settings.repository(ROOT))
