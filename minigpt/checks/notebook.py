"""In a notebook, a check that stops at a name which no cell has made says so, and shows no traceback.

``checks.score(..., checks.part(3, parameters.counts, count_minigpt))`` looks the answer up before any check begins. So
IPython, which asks an exception of ours how it looks, is asked to let us show this one. It looks like ``Wrong``.

Left out: any other error of a check cell, which is the course's fault or an edit of the cell; it keeps its traceback.
"""

from __future__ import annotations

import linecache
import sys

from minigpt.checks.verdict import Wrong

OURS = ("checks.score(", "checks.judging(")  # one of these stands in a check cell


def show_verdicts() -> None:
    """Once in a kernel; nothing outside IPython, and nothing where somebody else shows errors."""
    interactive = sys.modules.get("IPython")
    shell = interactive.get_ipython() if interactive else None
    if shell is not None and not shell.custom_exceptions:
        shell.set_custom_exc((NameError, KeyboardInterrupt), _show)


def _show(shell, kind, error, trace, tb_offset=None) -> None:
    """What IPython calls for these errors of any cell."""
    frames, last = [], trace
    while last is not None:
        frames.append(last.tb_frame)
        last = last.tb_next
    cells = [frame for frame in frames if frame.f_globals is shell.user_ns and frame.f_code.co_name == "<module>"]
    source = "".join(linecache.getlines(cells[0].f_code.co_filename)) if cells else ""
    sentence = ""
    if any(word in source for word in OURS):
        if kind is KeyboardInterrupt:
            sentence = "the check was stopped before it had judged the answer"
        elif frames[-1] is cells[0]:
            sentence = f"there is no {error.name} yet: run the cells above this one, in order"
    if sentence:  # the class stays: nbgrader would show an error of another class beside it
        error.args, error._render_traceback_ = (sentence,), Wrong("not-run", sentence)._render_traceback_
    shell.showtraceback((kind, error, trace), tb_offset=tb_offset or 1)
