"""A check cell, executed where no student's code runs: the course's own text of it.

    namespace = prepared(lab)                     what the lab's parameters and setup cells make, here
    verdict = judge(cell, namespace, channel)     the answers that the check looks at are those behind ``channel``
    verdict.outputs                               an error, a number as the result, or neither: as nbgrader reads them

A check is one function whose parameters name the answers (``minigpt.checks.cell``); any other is told as broken.

Left out: a limit on what the checks themselves take.
"""

from __future__ import annotations

import contextlib
import io
import traceback
from dataclasses import dataclass, field

from nbformat import NotebookNode
from nbformat.v4 import new_output

from minigpt.checks import answers
from minigpt.checks.verdict import Wrong
from tools.check_form import refuse_other_forms

SHARED = {"parameters", "setup"}  # the tags of cells that a check may use the names of


@dataclass
class Verdict:
    """``points``: 0.0 for a check that failed, None for all of them. ``broken``: why, where the check itself failed."""

    points: float | None
    wrong: Wrong | None = None
    outputs: list[NotebookNode] = field(default_factory=list)
    broken: str = ""

    @property
    def ids(self) -> frozenset[str]:
        return self.wrong.ids if self.wrong else frozenset()

    def better(self, other: Verdict) -> bool:
        return self.points is None and other.points is not None or (self.points or 0) > (other.points or 0)


def shared(cells: list[NotebookNode]) -> list[NotebookNode]:
    return [cell for cell in cells if cell.cell_type == "code" and SHARED & {*cell.metadata.get("tags", [])}]


def prepared(cells: list[NotebookNode]) -> dict:
    """The namespace of a lab's checks. Raises ValueError where one of its own cells fails."""
    namespace: dict = {"__name__": "checks_of_the_lab"}
    for cell in shared(cells):
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                exec(compile(cell.source, f"<{cell.id}>", "exec"), namespace)
        except Exception as error:
            raise ValueError(f"the lab's own cell {cell.id} fails: {type(error).__name__}: {error}") from None
    return namespace


def judge(cell: NotebookNode, namespace: dict, channel: answers.Channel) -> Verdict:
    """Execute a check; whatever happens in it, there is a verdict."""
    said = io.StringIO()
    space = dict(namespace)  # what one check leaves behind is not there for the next
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(io.StringIO()), answers.elsewhere(channel):
            result = _execute(cell, space)
    except AssertionError as error:
        wrong = error if isinstance(error, Wrong) else Wrong("required", str(error) or "an assertion does not hold")
        return Verdict(0.0, wrong, [*_stream(said), _error(wrong)])
    except (Exception, SystemExit) as error:
        traceback.print_exc()  # into the log
        broken = f"the check {_name(cell)} itself failed with {type(error).__name__}: {error}"
        return Verdict(0.0, None, [*_stream(said), _error(Wrong("broken-check", broken))], broken)
    if result is None:
        return Verdict(None, None, _stream(said))
    number = new_output("execute_result", data={"text/plain": repr(float(result))}, execution_count=None)
    return Verdict(float(result), getattr(result, "verdict", None), [*_stream(said), number])


def unreadable(broken: str) -> Verdict:
    """A check that failed, and would not have with the course's own answers: what these said of themselves was none."""
    wrong = Wrong(
        "broken-reply", "what came back from the answer cannot be judged; is it of the kind that was asked for?"
    )
    return Verdict(0.0, wrong, [_error(wrong)], f"{broken}; with the course's own answers it does not")


def _execute(cell: NotebookNode, space: dict) -> float | None:
    """The points that the check gives, or None for all of them."""
    name = _name(cell)
    refuse_other_forms(name, cell.source)
    exec(compile(cell.source, f"<{name}>", "exec"), space)
    return space[name.replace("-", "_")]


def _name(cell: NotebookNode) -> str:
    return cell.metadata.get("nbgrader", {}).get("grade_id") or cell.id


def _stream(said: io.StringIO) -> list[NotebookNode]:
    return [new_output("stream", name="stdout", text=said.getvalue())] if said.getvalue() else []


def _error(wrong: Wrong) -> NotebookNode:
    return new_output("error", ename="Wrong", evalue=str(wrong), traceback=wrong._render_traceback_())
