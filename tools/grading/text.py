"""From bytes to text, and what a file is that should be a notebook and is none: one sentence with what to do."""

from __future__ import annotations

import json
import re

MAGIC = {
    b"PK": "it is a zip archive or an office document",
    b"%PDF": "it is a PDF",
    b"\x89PNG": "it is a picture",
    b"\xff\xd8\xff": "it is a picture",
    b"\x1f\x8b": "it is a gzip archive",
    b"Rar!": "it is a rar archive",
    b"7z\xbc\xaf": "it is a 7z archive",
    b"\xd0\xcf\x11\xe0": "it is an office document",
    b"SQLite": "it is a database",
    b"\x93NUMPY": "it is a NumPy array",
}
AGAIN = "save the notebook again and hand in that file"
ITSELF = "hand in the notebook itself (.ipynb)"


def decode(data: bytes) -> tuple[str, str]:
    """The text, with line ends as "\\n", and the encoding that it was found in. Raises ValueError for other bytes."""
    if not data.strip(b"\0 \t\r\n"):
        raise ValueError(f"it is empty; {AGAIN}")
    for start, sort in MAGIC.items():
        if data.startswith(start):
            raise ValueError(f"{sort}; {ITSELF}")
    encoding: str = json.detect_encoding(data)  # by its byte-order mark, or by where its zeros are
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError:
        if encoding != "utf-8":
            raise ValueError(f"it is damaged text in {encoding}; {AGAIN}") from None
        encoding, text = "windows-1252", data.decode("cp1252", errors="replace")
    if "\0" in text:
        raise ValueError(f"it is no text; {ITSELF}")
    return text.lstrip("\ufeff").replace("\r\n", "\n").replace("\r", "\n"), encoding


def loads(text: str) -> dict:
    """The JSON object in ``text``. Raises ValueError that says what the text is instead."""
    try:
        data = json.loads(text)
    except RecursionError:
        raise ValueError(f"its JSON is nested too deep; {AGAIN}") from None
    except ValueError as error:
        raise ValueError(_instead(text, getattr(error, "pos", 0))) from None
    if not isinstance(data, dict):
        raise ValueError(f"it is JSON, but no object with cells; {ITSELF}")
    return data


def _instead(text: str, at: int) -> str:
    start = text.lstrip()[:200].lower()
    if start.startswith("<"):
        return f"it is a web page; {ITSELF}, on Colab by File, Download, Download .ipynb"
    if start.startswith("version https://git-lfs"):
        return "it is git's pointer to a large file; run git lfs pull and hand in the notebook itself"
    if re.search(r"^(<{7}|>{7}) ", text, re.MULTILINE):
        return (
            "it holds the marks of a merge conflict of git; resolve it, open and save it in Jupyter, and hand in again"
        )
    if not start.startswith(("{", "[")):
        return f"it is text, but no JSON; {ITSELF}"
    ends = text.rstrip()
    if at >= len(ends) or not ends.endswith(("}", "]")):
        return f"it ends in the middle; {AGAIN}"
    return f"its JSON breaks off in line {text.count(chr(10), 0, at) + 1}; open it in Jupyter, {AGAIN}"


def whole(text: object) -> str:
    """A source as text: lists of lines joined, line ends as "\\n", and nothing that UTF-8 cannot write.

    Raises ValueError for what is neither text nor lines of text.
    """
    if isinstance(text, list) and all(isinstance(line, str) for line in text):
        text = "".join(text)
    if not isinstance(text, str):
        raise ValueError("the source of a cell is no text; " + AGAIN)
    text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # half of a character alone
    return text.replace("\r\n", "\n").replace("\r", "\n")
