"""README and CONTRIBUTING tell the truth: links, commands and rooms exist, the table says what notebooks declare."""

from __future__ import annotations

import re

import pytest
import yaml

from minigpt.memory.families.architecture import FAMILIES
from tools import ROOT
from tools.cases import groups
from tools.models import MODELS

README, CONTRIBUTING = ((ROOT / name).read_text(encoding="utf8") for name in ("README.md", "CONTRIBUTING.md"))


def front_matter(stem: str) -> dict:
    [path] = (ROOT / "content").glob(f"*/{stem}.md")
    return yaml.safe_load(path.read_text(encoding="utf8").split("---\n")[1])


@pytest.mark.parametrize(("text", "least"), [(README, 5), (CONTRIBUTING, 2)])
def test_every_link_leads_somewhere(text, least):
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", text) if not link.startswith("http")]
    assert len(links) >= least
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_every_command_exists():
    makefile = (ROOT / "Makefile").read_text(encoding="utf8")
    targets = set(re.findall(r"`?make ([a-z-]+)", README + CONTRIBUTING))
    assert {"run", "test", "lint", "lab", "notebooks", "grade", "colab", "doctor", "accuracy", "bench"} <= targets
    assert [name for name in targets if not re.search(rf"^{name}:", makefile, re.M)] == ["it"] * ("it" in targets)


def test_every_room_exists():
    paths = set(re.findall(r"`([\w-]+/[\w/.-]*)`", README + CONTRIBUTING))
    assert {"minigpt/memory/families/", "minigpt/memory/measured/"} <= paths
    stands_for_another = re.compile(r"NN|NAME|^(build|work)/")  # made by whoever uses the course
    assert [path for path in paths if not stands_for_another.search(path) and not (ROOT / path).exists()] == []


def test_the_table_has_every_notebook_and_its_budget():
    rows = dict(re.findall(r"\[[\w-]+\]\((?:lessons|labs)/(?:[\w-]+/)?([\w-]+)\.ipynb\) \|[^|]*\|([^\n]*)\|", README))
    notebooks = {path.stem for path in (ROOT / "content").glob("l*/*.md")}
    assert set(rows) == notebooks
    for stem, row in rows.items():
        minutes, memory, gpu = (cell.strip() for cell in row.split("|"))
        declared = front_matter(stem)
        assert minutes == f"{declared['minutes']['cpu']:g}", stem
        assert memory == f"{declared['memory_gb']['ram']:g} GB", stem
        assert gpu == f"{declared['minutes']['gpu']:g} min, {declared['memory_gb']['vram']:g} GB", stem


def test_what_accuracy_compares_is_counted_right():
    text = " ".join(README.split())
    families, cases, models = (
        int(re.search(said, text)[1].replace(",", ""))
        for said in (r"knows (\d+) model families", r"over ([\d,]+) cases", r": (\d+) small models of all families")
    )
    assert families == len(FAMILIES) and models == len(MODELS)
    assert cases == sum(map(len, groups().values()))
