"""A pickle that holds plain data, and nothing that runs.

``pickle.load`` calls whatever a file names, so a snapshot from a stranger is a programme. torch writes its snapshots of
dicts, lists, strings and numbers alone. Every opcode is looked at before anything is built: one that is not needed
for those is refused, and so is a place in the memo beyond what the file can have filled, for which C would allocate.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from pathlib import Path
from typing import Any, NoReturn

ALLOWED = frozenset(
    """PROTO FRAME STOP MARK POP POP_MARK DUP MEMOIZE PUT BINPUT LONG_BINPUT GET BINGET LONG_BINGET
    NONE NEWTRUE NEWFALSE INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT
    UNICODE SHORT_BINUNICODE BINUNICODE BINUNICODE8 SHORT_BINBYTES BINBYTES BINBYTES8
    STRING BINSTRING SHORT_BINSTRING
    EMPTY_LIST LIST APPEND APPENDS EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 EMPTY_DICT DICT SETITEM SETITEMS""".split()
)
PUTS = ("PUT", "BINPUT", "LONG_BINPUT")


def load(path: str | Path) -> tuple[Any, int]:
    """The object in a pickle of plain data, and the file's bytes.

    Raises ValueError for a file that cannot be read, is no pickle, or holds more than plain data.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or type(error).__name__}") from None
    try:
        _look(path, data)
        return _Plain(io.BytesIO(data)).load(), len(data)
    except Refused as error:
        raise ValueError(str(error)) from None
    except Exception as error:  # a broken pickle raises any of a dozen kinds
        raise ValueError(f"{path} is not a whole pickle: {error or type(error).__name__}") from None


class Refused(Exception):
    """A pickle of more than plain data."""


class _Plain(pickle.Unpickler):
    """The second lock: no class is found, whatever the opcodes were."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise Refused(f"it asks for {module}.{name}; a snapshot has no classes")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise Refused("it refers to objects outside of the file; a snapshot has none")


def _look(path: str | Path, data: bytes) -> None:
    asked = ""
    for opcode, argument, position in pickletools.genops(data):
        name = opcode.name
        if name in ("SHORT_BINUNICODE", "BINUNICODE"):
            continue
        if name not in ALLOWED:
            asked = f" ({argument})" if argument is not None else ""
            text = "a snapshot is dicts, lists, strings and numbers; nothing was run"
            raise Refused(f"{path} holds {name}{asked} at byte {position}, which could run code: {text}")
        if name in PUTS and int(argument or 0) > (position or 0):
            raise Refused(f"{path} holds {name} {argument} at byte {position}: more memory than the file accounts for")
