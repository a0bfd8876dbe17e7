"""The course's own tooling: build the notebooks, run them, grade them, pack them for Colab. Not installed."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent  # the course's folder


def write_whole(path: Path, text: str) -> None:
    """Write ``text`` to ``path``, all of it or nothing; makes the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        temporary.write_bytes(text.encode("utf8"))
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
