"""Printing that no terminal can break: a letter that its encoding lacks is escaped, a closed pipe ends the output.

Left out: colours, progress bars, everything on stderr. This file imports no torch.
"""

from __future__ import annotations

import os
import sys


def show(text: str) -> None:
    """Print ``text`` and a line end to stdout."""
    try:
        try:
            print(text, flush=True)
        except UnicodeEncodeError:
            encoding = sys.stdout.encoding
            print(text.encode(encoding, "backslashreplace").decode(encoding), flush=True)
    except BrokenPipeError:  # the reader, such as head, has seen enough; what is buffered goes nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
