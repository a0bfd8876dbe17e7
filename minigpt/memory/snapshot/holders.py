"""Whose Python line asked for what is held: the innermost one outside of torch's own code."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from minigpt.memory.snapshot.recording import Frame, Request

UNKNOWN = "no Python line: asked for before the recording, or by a thread of autograd without a stack"


class Holder(NamedTuple):
    """So many ``requests`` of ``nbytes`` together, in whole blocks, by one ``line``: "model.py:31 in forward"."""

    line: str
    nbytes: int
    requests: int


def holders(held: Iterable[Request]) -> list[Holder]:
    """Who holds what, the largest first."""
    found: dict[str, list[int]] = defaultdict(list)
    for request in held:
        found[line(request.frames)].append(request.takes)
    return sorted(
        (Holder(who, sum(sizes), len(sizes)) for who, sizes in found.items()), key=lambda h: (-h.nbytes, h.line)
    )


def line(frames: tuple[Frame, ...]) -> str:
    """The user's frame as "file.py:31 in forward": Python, and not in torch's folder if another is there."""
    python = [frame for frame in frames if frame.file.endswith(".py") or frame.file.startswith("<ipython")]
    if not python:
        return UNKNOWN
    parts = [frame.file.replace("\\", "/").split("/") for frame in python]
    chosen = next((place for place, part in enumerate(parts) if "torch" not in part[:-1]), 0)
    return f"{'/'.join(parts[chosen][-2:])}:{python[chosen].line} in {python[chosen].name}"
