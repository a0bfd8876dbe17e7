"""README tells the truth: its links lead somewhere, its commands exist, its table says what the notebooks declare."""

from __future__ import annotations

import re

import yaml

from tools import ROOT

README = (ROOT / "README.md").read_text(encoding="utf8")


def front_matter(stem: str) -> dict:
    [path] = (ROOT / "content").glob(f"*/{stem}.md")
    return yaml.safe_load(path.read_text(encoding="utf8").split("---\n")[1])


def test_every_link_leads_somewhere():
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", README) if not link.startswith("http")]
    assert len(links) > 5
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_every_command_exists():
    makefile = (ROOT / "Makefile").read_text(encoding="utf8")
    targets = set(re.findall(r"`?make ([a-z]+)", README))
    assert {"run", "test", "lab", "notebooks", "grade", "colab", "doctor", "accuracy", "bench", "help"} <= targets
    assert [name for name in targets if not re.search(rf"^{name}:", makefile, re.M)] == ["it"] * ("it" in targets)


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
