"""What the build makes of tiny courses, with nbgrader itself as the judge; and the real course's freshness."""

from __future__ import annotations

import json
import re

import nbformat
import pytest
from nbgrader.nbgraderformat import MetadataValidator

from minigpt.memory.families import Architecture
from tests.tiny_course import HEAD, LAB, LESSON, cells, names
from tools import ROOT, build, settings
from tools.bank_lab import Lab, Outcome


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A course of one lesson and one lab, built."""
    root = tmp_path_factory.mktemp("course")
    for name, text in {"lessons/01-tiny.md": LESSON, "labs/lab01-tiny.md": LAB}.items():
        path = root / "content" / name
        path.parent.mkdir(parents=True)
        path.write_text(text)
    for name in ("pyproject.toml", "constraints.txt"):
        (root / name).write_bytes((ROOT / name).read_bytes())
    assert build.main([], root) == 0
    return root


@pytest.mark.slow
def test_the_course_is_fresh():
    changes = build.stale(ROOT, build.build(ROOT))
    used = [path for path in changes if not build._replaceable(ROOT / path)]
    assert not used, f"run in place: {used}; your own copies are in work/ (`make lab`), `git checkout` gives these back"
    assert not changes, "run `make notebooks` and commit what it changes"


@pytest.mark.parametrize("folder", ["", "lessons", "labs", "solutions"])
def test_no_line_within_a_paragraph_looks_like_an_item_of_a_list(folder):
    """ "... a block of" and, on the next line, "64. That is": some Markdown readers begin a list there."""
    item, found = re.compile(r" {0,3}(\d+[.)]|[-+*]) "), []
    for path in (ROOT / folder).glob("*.ipynb" if folder in ("", "lessons") else "*/*.ipynb"):
        for cell in nbformat.read(path, as_version=4).cells:
            lines = cell.source.split("\n") if cell.cell_type == "markdown" else []
            for before, line in zip(lines, lines[1:]):
                begins = not before.strip() or item.match(before) or before.startswith(("  ", "|"))
                found += [f"{path.name}: {line}"] if item.match(line) and not begins else []
    assert not found


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
    root = course(**{"lessons/01-tiny.md": LESSON})
    assert build.main([], root) == 0
    before = set(cells(root, "lessons/01-tiny.ipynb"))
    path = root / "content/lessons/01-tiny.md"
    path.write_text(path.read_text().replace("## Counting", "## Counting to two"))
    assert build.main([], root) == 0
    after = set(cells(root, "lessons/01-tiny.ipynb"))
    assert len(before) == len(after) == 5 and len(before - after) == 1


def test_placeholders(course):
    numbers = (
        "from minigpt.memory import Architecture\n\n"
        'llama = Architecture.of("llama-7b")\ntable = [[1, 2]]\nassert all(i for row in table for i in row)\n'
    )
    text = """
It has [[ llama.parameters ]] parameters, [[ gb(2 * llama.parameters) ]], [[ table[0][1] ]] or [[ 'two' ]].
The interval $[[0, 1]]$, `[[0]]` and the [[link]](#a) stay.

```{code-cell}
a = [[ 1 ]]
```
"""
    root = course(**{"lessons/01-tiny.md": HEAD + text, "lessons/01-tiny.numbers.py": numbers})
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
    root = course(**{"lessons/01-tiny.md": "\ufeff" + HEAD + body})
    assert build.main([], root) == 0
    assert list(cells(root, "lessons/01-tiny.ipynb").values())[-1].source == "%matplotlib inline\nfiles = !ls"


def test_the_example_of_the_guide_builds(course):
    guide = (ROOT / "content" / "README.md").read_text()
    text, numbers = (
        re.search(rf"^(`+){kind}\n(.*?)\1$", guide, re.DOTALL | re.M)[2] for kind in ("markdown", "python")
    )
    root = course(**{"labs/lab01-count.md": text, "labs/lab01-count.numbers.py": numbers})
    assert build.main([], root) == 0
    text = "\n".join(cell.source for cell in cells(root, "labs/lab01-count/lab01-count.ipynb").values())
    assert "NotImplementedError" in text and "micro" not in text and "[[" not in text
    lab = Lab(root / "content/labs/lab01-count.md", root)
    assert lab.run("count-minigpt", lab.answers["count-minigpt"]) == Outcome(2)
    assert lab.run("count-minigpt", lab.untouched["count-minigpt"]).points == 0


def test_the_first_cells_without_an_address(built):
    for path, name in {"lessons/01-tiny.ipynb": "01-tiny", "labs/lab01-tiny/lab01-tiny.ipynb": "lab01-tiny"}.items():
        title, bootstrap = list(cells(built, path).values())[:2]
        assert f"upload `build/colab/{name}.ipynb`" in title.source and "https://" not in title.source
        assert "pip" not in bootstrap.source


def test_the_badge_appears_with_the_address(course, capsys):
    root = course(**{"labs/lab01-tiny.md": LAB})
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
