"""A folder of pages, looked through: each link, anchor and picture leads to something; nothing asks another host.

Links to other sites are listed, not followed. Left out: what a script fetches while a page is open.
"""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from bs4 import BeautifulSoup

FETCHED = {  # what a browser loads by itself, as elements and their attributes; the other links wait for a click
    "img": ("src", "srcset"), "source": ("src", "srcset"), "script": ("src",), "iframe": ("src",), "video": ("src",),
    "audio": ("src",), "embed": ("src",), "object": ("data",), "link": ("href",), "image": ("href", "xlink:href"),
}  # fmt: skip
IN_STYLE = re.compile(r"url\(\s*['\"]?([^'\")]+)|@import\s+['\"]([^'\"]+)")


def check(pages: Path) -> tuple[int, list[str], list[str]]:
    """The number of HTML pages, what is broken in them and in their style sheets, and the addresses elsewhere."""
    soups = {path: BeautifulSoup(path.read_text(encoding="utf8"), "html.parser") for path in pages.rglob("*.html")}
    anchors = {path: {str(tag["id"]) for tag in soup.find_all(id=True)} for path, soup in soups.items()}
    broken: list[str] = []
    elsewhere: set[str] = set()

    def look(path: Path, fetched: list[str], clicked: list[str]) -> None:
        for address in dict.fromkeys(fetched + clicked):
            if not is_elsewhere(address):
                problem = leads_nowhere(path, address, anchors, pages)
            else:
                problem = f"asks another host for {address}" if address in fetched else None
            if problem:
                broken.append(f"{path.relative_to(pages).as_posix()} {problem}")
        elsewhere.update(filter(is_elsewhere, clicked))

    for path, soup in sorted(soups.items()):
        styles = [*soup("style"), *soup.find_all(style=True)]
        fetched = [address for tag in styles for address in in_style(str(tag.get("style") or tag.get_text()))]
        for tag in soup.find_all(list(FETCHED)):
            for attribute in FETCHED[tag.name]:
                given = str(tag.get(attribute, ""))
                fetched += (
                    [part.split()[0] for part in given.split(", ")] if attribute == "srcset" and given else [given]
                )
        look(path, fetched, [str(tag["href"]) for tag in soup.find_all(["a", "area"], href=True)])
    for sheet in sorted(pages.rglob("*.css")):
        look(sheet, in_style(sheet.read_text(encoding="utf8")), [])
    return len(soups), broken, sorted(elsewhere)


def in_style(text: str) -> list[str]:
    """The addresses that a style sheet fetches."""
    return [one or other for one, other in IN_STYLE.findall(text)]


def is_elsewhere(address: str) -> bool:
    parts = urlsplit(address)
    return bool(parts.netloc) or parts.scheme not in ("", "data")


def leads_nowhere(path: Path, address: str, anchors: dict[Path, set[str]], pages: Path) -> str | None:
    """Why a link of the file at ``path`` leads to nothing, or out of the site; None where it leads to something."""
    parts = urlsplit(address)
    if parts.scheme == "data" or address in ("", "#", "#top"):
        return None
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if pages.resolve() not in target.parents or not target.is_file():
        return f"leads to {address}, which is not there"
    if parts.fragment and target in anchors and unquote(parts.fragment) not in anchors[target]:
        return f"leads to {address}, and that page has no such place"
    return None
