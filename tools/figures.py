"""The drawn figures that lessons show, as files: lessons/figures/NAME.svg. ``minigpt.memory.figures`` draws them.

``[[ figure("lora") ]]`` in a text becomes a picture with its alt text, as Markdown, so that it is seen wherever
Markdown is, also on pages that show no outputs. Only what some text shows is written. A notebook that travels alone
carries its pictures inside.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from pathlib import Path

from tools.links import way

FOLDER = "lessons/figures"
PICTURE = re.compile(r"(!\[[^\]]*\]\()([^():\s]+\.svg)(\))")


class Figures:
    """What texts have asked for: ``files`` has the SVG of each by its path."""

    def __init__(self) -> None:
        self.files: dict[str, str] = {}

    def on(self, page: str) -> Callable[[str], str]:
        """The function ``figure(name)`` of the texts: the Markdown of a picture, as ``page`` links it."""

        def figure(name: str) -> str:
            from minigpt.memory.figures import FIGURES

            if name not in FIGURES:
                raise ValueError(f"figure is {name!r}; allowed: {', '.join(FIGURES)}")
            drawn = FIGURES[name]()
            path = f"{FOLDER}/{name}.svg"
            self.files[path] = drawn.svg
            return f"![{drawn.alt}]({way(page, path)})"

        return figure


def is_made(path: Path) -> bool:
    """Whether the file is one of these, and nobody's own drawing."""
    from minigpt.memory.figures.svg import MARK

    return f"<!-- {MARK} -->" in path.read_text(encoding="utf8")


def data_address(path: Path) -> str:
    """A picture inside an address, for a page that may not lie beside it."""
    return f"data:image/svg+xml;base64,{base64.b64encode(path.read_bytes()).decode()}"


def carried(source: str, folder: Path) -> str:
    """Markdown with its drawn pictures inside it, instead of in files below ``folder``."""

    def change(match: re.Match) -> str:
        path = folder / match[2]
        return f"{match[1]}{data_address(path)}{match[3]}" if path.exists() else match[0]

    return PICTURE.sub(change, source)
