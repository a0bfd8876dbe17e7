"""What pyproject.toml and constraints.txt say, for the tools: versions, names, the repository's address.

Imports nothing that has to be installed, so that `python -m tools.doctor` works where nothing is.
"""

from __future__ import annotations

import re
from pathlib import Path

GITHUB = re.compile(r"https://github\.com/([\w.-]+/[\w.-]+?)(?:\.git)?/?")


def pyproject(root: Path) -> dict:
    """What pyproject.toml says. Raises ValueError for one that is not TOML, or of no project."""
    import tomllib  # Python 3.11's

    with open(root / "pyproject.toml", "rb") as file:
        try:
            content = tomllib.load(file)
        except ValueError as error:
            raise ValueError(f"pyproject.toml: {error}") from None
    if not isinstance(content.get("project"), dict):
        raise ValueError("pyproject.toml has no [project]")
    return content


def repository(root: Path) -> str | None:
    """The repository's address, or None while nobody has set it. Raises ValueError if Colab could not open it."""
    urls = pyproject(root)["project"].get("urls", {})
    if not isinstance(urls, dict):
        raise ValueError(f"pyproject.toml: project.urls is {urls!r}; it must be a table")
    address = urls.get("Repository", "")
    if address != "" and not (isinstance(address, str) and GITHUB.fullmatch(address)):
        raise ValueError(
            f"pyproject.toml: project.urls Repository is {address!r}; "
            "allowed: https://github.com/OWNER/NAME (Colab opens no other), or nothing"
        )
    return address or None


def requirements(root: Path) -> tuple[list[str], list[str]]:
    """The names of the packages that the course needs, and of those that come with Unsloth (optional)."""
    content = pyproject(root)
    extras = content["project"]["optional-dependencies"].values()
    needed = [*content["project"]["dependencies"], *(requirement for extra in extras for requirement in extra)]
    return _names(needed), _names(content["dependency-groups"]["unsloth"])


def _names(requirements: list[str]) -> list[str]:
    """``["numpy>=2", "ruff"]`` is ``["numpy", "ruff"]``; each name once."""
    return list(dict.fromkeys(normal(re.split(r"[^\w.-]", requirement)[0]) for requirement in requirements))


def pins(root: Path) -> dict[str, str]:
    """The exact versions in constraints.txt, by normal name."""
    lines = (root / "constraints.txt").read_text(encoding="utf8").splitlines()
    pairs = (line.split("==") for line in lines if "==" in line and not line.startswith("#"))
    return {normal(name): version for name, version in pairs}


def normal(name: str) -> str:
    """A package's name as PEP 503 writes it: ``docstring_parser`` is ``docstring-parser``."""
    return re.sub(r"[-_.]+", "-", name).lower()
