"""The two cells that every notebook opens with: its title and cost, and what Colab needs.

The repository's address is one setting, ``Repository`` under [project.urls] in pyproject.toml. While nobody has
set it, the first cell says how to make a notebook that Colab can run, instead of linking nowhere.
"""

from __future__ import annotations

import json
from pathlib import Path

from nbformat.v4 import new_code_cell, new_markdown_cell

from tools.settings import GITHUB, normal

FOLDED = {"source_hidden": True}  # in JupyterLab
BADGE = "https://colab.research.google.com/assets/colab-badge.svg"

# The bootstrap cell's parts. torch and numpy are never touched: nothing here resolves dependencies.
HOSTED = """\
# Adds what Colab lacks, beside the torch and numpy that are there. Elsewhere it installs nothing.
import importlib.util
"""
CARRIED = """\
# @title Set-up: this notebook carries the course's package
import base64
import importlib.util
import io
import os
import sys
import tempfile
import zipfile

wheel = \"\"\"
{wheel}
\"\"\"
if importlib.util.find_spec("minigpt") is None:
    unpacked = tempfile.TemporaryDirectory(prefix="memory-ledger-")  # it goes when the kernel ends
    zipfile.ZipFile(io.BytesIO(base64.b64decode(wheel))).extractall(unpacked.name)
    sys.path.insert(0, unpacked.name)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [unpacked.name, os.environ.get("PYTHONPATH")]))
"""
INSTALL = """\
import os
import subprocess
import sys

wanted = {wanted}
missing = [source for name, source in wanted.items() if importlib.util.find_spec(name) is None]
if missing and ("COLAB_RELEASE_TAG" in os.environ or "google.colab" in sys.modules):
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", *missing], check=True)
    importlib.invalidate_caches()
"""
NOWHERE = """
if importlib.util.find_spec("minigpt") is None:
    raise ModuleNotFoundError("minigpt is missing: start with `make lab`, or for Colab with `make colab`")
"""
PLACE = """
from minigpt.place import own_copy

own_copy()
"""


def title_cell(ledger: dict, on_colab: str, links: str = ""):
    """The first cell. ``ledger`` is the document's front matter, ``on_colab`` the way to Colab, ``links`` to others."""
    minutes, memory = ledger["minutes"], ledger["memory_gb"]
    cost = (
        f"{'Read and work' if ledger['kind'] == 'lab' else 'Read'} {ledger['read']} minutes; "
        f"runs in at most {_minutes(minutes['cpu'])} on a CPU, {_minutes(minutes['gpu'])} on a GPU. "
        f"Memory: at most {memory['ram']:g} GB, and {memory['vram']:g} GB on the GPU."
    )
    if ledger.get("points"):
        cost += f" Points: {ledger['points']}."
    lines = [f"# {ledger['title']}", links, cost, on_colab]
    return new_markdown_cell("\n\n".join(filter(None, lines)), id="title")


def way_to_colab(path: str, address: str | None) -> str:
    """The badge for the notebook at ``path`` in the repository; without an ``address``, how to do without."""
    if address:
        repository = GITHUB.sub(r"\1", address)
        link = f"https://colab.research.google.com/github/{repository}/blob/main/{path}"
        return f"[![Open in Colab]({BADGE})]({link})"
    return f"On Colab: `make colab`, then upload `build/colab/{Path(path).name}` (*File → Upload notebook*)."


def install_cell(ledger: dict, address: str | None, versions: dict[str, str]):
    """The bootstrap cell of a notebook in the repository: on Colab it fetches the package from ``address``."""
    wanted = ({"minigpt": f"git+{address}"} if address else {}) | _wanted(ledger, versions)
    return _bootstrap(HOSTED + _install(wanted) + ("" if address else NOWHERE) + PLACE)


def unpack_cell(ledger: dict, wheel: str, versions: dict[str, str]):
    """The bootstrap cell of a notebook that carries the package. ``wheel`` is base64 text, folded into lines."""
    cell = _bootstrap(CARRIED.format(wheel=wheel) + _install(_wanted(ledger, versions)))
    cell.metadata["cellView"] = "form"  # folded in Colab
    return cell


def _wanted(ledger: dict, versions: dict[str, str]) -> dict[str, str]:
    return {name: f"{name}=={versions[normal(name)]}" for name in ledger["colab"]}


def _install(wanted: dict[str, str]) -> str:
    return INSTALL.format(wanted=json.dumps(wanted)) if wanted else ""


def _bootstrap(source: str):
    return new_code_cell(source.rstrip("\n"), id="bootstrap", metadata={"tags": ["bootstrap"], "jupyter": FOLDED})


def _minutes(n: float) -> str:
    return "1 minute" if n == 1 else f"{n:g} minutes"
