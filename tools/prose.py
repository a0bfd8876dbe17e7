"""Numbers in prose are computed, never typed: ``[[ gib(step.peak.total) ]]`` becomes ``63.88 GiB``.

A placeholder is ``[[``, a space, one Python expression, a space, ``]]``, in Markdown. The spaces keep it apart
from LaTeX intervals and Markdown links. It sees what minigpt.memory offers, and the names that the document's own
``numbers`` block defines. Its value is text, or a whole number, printed with thousands separators.
"""

from __future__ import annotations

import re

PLACEHOLDER = re.compile(r"\[\[ (.+?) \]\]")
BRACKETED = re.compile(  # where double brackets mean something else: fences, code, formulas, links
    r"^```.*?^```|^~~~.*?^~~~|(`+).+?\1|\$\$.+?\$\$|\$(?:[^$\n]|\n(?!\n))+\$|\[\[[^\[\]]*\]\](?=[(\[])",
    re.DOTALL | re.MULTILINE,
)


def namespace(numbers: str, text: str) -> dict:
    """The names that placeholders see. ``numbers`` is Python, taken from the front matter of ``text``.

    Raises ValueError, with the line in ``text``, if the block fails.
    """
    from minigpt import memory
    from minigpt.memory import units
    from minigpt.memory.plan import PRECISIONS

    names = {name: getattr(units, name) for name in dir(units) if not name.startswith("_")}
    names |= {name: getattr(memory, name) for name in memory.__all__ if name != "MemoryMeter"}
    names["PRECISIONS"] = PRECISIONS
    try:
        exec(compile(numbers, "numbers", "exec"), names)
    except (Exception, SystemExit) as error:
        line, trace = getattr(error, "lineno", None), error.__traceback__
        while trace:
            if trace.tb_frame.f_code.co_filename == "numbers":
                line = trace.tb_lineno
            trace = trace.tb_next
        source = numbers.split("\n")[(line or 1) - 1].strip()
        raise ValueError(f"{_line(text, source)}: the numbers block fails at {source!r}: {_say(error)}") from None
    return names


def fill(source: str, names: dict, text: str) -> str:
    """``source`` with its placeholders replaced. ``text`` is the whole document, for the line in an error.

    Raises ValueError for a placeholder that fails, or that is not written as one.
    """
    left = BRACKETED.sub("", PLACEHOLDER.sub("", source))
    for line in left.split("\n"):
        if "[[" in line or "]]" in line:
            raise ValueError(f"{_line(text, line)}: {line.strip()[:60]!r} is no placeholder; write [[ x ]] on one line")

    def value(match: re.Match) -> str:
        expression = match[1]
        try:
            result = eval(compile(expression, "placeholder", "eval"), names)
        except (Exception, SystemExit) as error:
            raise ValueError(f"{_line(text, match[0])}: [[ {expression} ]] fails: {_say(error)}") from None
        if isinstance(result, bool) or not isinstance(result, (str, int)):
            raise ValueError(
                f"{_line(text, match[0])}: [[ {expression} ]] is a {type(result).__name__}; "
                "allowed: text or a whole number (format a float, or give it a unit)"
            )
        return result if isinstance(result, str) else f"{result:,}"

    return PLACEHOLDER.sub(value, source)


def _line(text: str, part: str) -> str:
    before, found, _ = text.partition(part)
    return f"line {before.count(chr(10)) + 1}" if found else "line unknown"


def _say(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
