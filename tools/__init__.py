"""The course's own tooling: build the notebooks, run them, grade them, pack them for Colab. Not installed."""

import os
import sys
from pathlib import Path

# jsonschema, which nbformat imports, would compile a grammar for web addresses for a second; no notebook needs it
sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]  # Python allows it: not to be found

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
