"""One notebook, executed by papermill in a process of its own: ``python -m tools.execute JOB``, JOB as JSON.

The runner starts this file, so that a notebook can neither crash the runner nor leave memory behind. It
reports on standard output, a JSON object a line: ``{"cell": n}`` as each code cell starts, and at the end
``{"problems": [...], "ram": bytes}``. What the kernel itself prints to its console goes to standard error.

A problem is one sentence. papermill alone would pass a notebook that raised SystemExit, that has cells nobody
executed, or that shows a picture without words for who cannot see it; here all three are problems. ``ram`` is the
operating system's own high-water mark of the kernel.

A cell is named as its reader sees it, In [n]. papermill's injected cell has no number: it is not in the notebook.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from pathlib import Path

import nbformat
from jupyter_client.manager import AsyncKernelManager

from tools import ROOT

LEAVE = f"__import__('runpy').run_path({str(ROOT / 'tools' / 'leave.py')!r}, run_name='leave')"


class WatchedKernel(AsyncKernelManager):
    """A kernel manager that remembers how its kernel ended: an exit code, or minus a signal."""

    exit_code: int | None = None

    async def is_alive(self) -> bool:  # type: ignore[override]  # there it is an attribute
        if self.has_kernel and self.provisioner is not None:
            status = await self.provisioner.poll()
            if status is not None:
                WatchedKernel.exit_code = status
            return status is None
        return False


def why_dead(exit_code: int | None) -> str:
    """A dead process's exit code in words; None where nobody knows it."""
    if exit_code is None:
        return "the kernel died, nobody knows why"
    number = -exit_code if exit_code < 0 else exit_code - 128 if exit_code > 128 else None
    if number is None:
        return f"the kernel ended itself with exit code {exit_code}"
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = "unknown"
    why = f"the kernel was killed by signal {number} ({name})"
    if name == "SIGKILL":
        why += ": most likely out of memory"
    return why


def numbers(cells) -> dict[int, int]:
    """{index of a code cell: n of its In [n]} for who runs the notebook from its top, without an injected cell."""
    counted = [i for i, cell in enumerate(cells) if cell.cell_type == "code" and cell.source.strip()]
    own = [i for i in counted if "injected-parameters" not in cells[i].metadata.get("tags", [])]
    return {i: n for n, i in enumerate(own, 1)}


def renumber(notebook) -> None:
    """Give the cells of an executed notebook the numbers that its reader sees, in tracebacks, too."""
    seen = numbers(notebook.cells)
    code = [(i, cell) for i, cell in enumerate(notebook.cells) if cell.cell_type == "code"]
    new = {str(cell.execution_count): str(seen[i]) for i, cell in code if cell.execution_count and i in seen}

    def put_right(text: str) -> str:
        return re.sub(r"(?<=In\[)\d+(?=\])|(?<=In \[)\d+(?=\])", lambda found: new.get(found[0], found[0]), text)

    for i, cell in code:
        cell.execution_count = seen.get(i) if cell.execution_count else None
        for output in cell.outputs:
            if output.output_type == "execute_result":
                output.execution_count = cell.execution_count
            if output.output_type == "error":
                output.traceback = [put_right(line) for line in output.traceback]
    for cell in notebook.cells:
        if "papermill-error-cell-tag" in cell.metadata.get("tags", []):
            cell.source = put_right(cell.source)


def unfinished(notebook) -> list[str]:
    """What papermill lets through: SystemExit, and code cells that were never executed."""
    shown = numbers(notebook.cells)
    for i, n in shown.items():
        cell = notebook.cells[i]
        if any(out.output_type == "error" and out.ename == "SystemExit" for out in cell.outputs):
            return [f"In [{n}] raised SystemExit, so the cells after it never ran: {first_line(cell.source)}"]
    skipped = [n for i, n in shown.items() if notebook.cells[i].execution_count is None]
    if not skipped:
        return []
    return [f"{len(skipped)} code cell{'s were' if len(skipped) > 1 else ' was'} not executed: {listed(skipped)}"]


def wordless(notebook) -> list[str]:
    """Pictures without alt text, which ``minigpt.memory.plots`` gives to every figure that a notebook shows."""
    silent = [n for i, n in numbers(notebook.cells).items() if any(map(lacks_words, notebook.cells[i].outputs))]
    return [f"a picture without alt text: {listed(silent)}; import minigpt.memory.plots before it"] if silent else []


def lacks_words(output) -> bool:
    """Whether an output is a picture that says nothing: neither in its metadata, nor in its HTML or SVG."""
    data, metadata = output.get("data", {}), output.get("metadata", {})
    kinds = [kind for kind in data if kind.startswith("image/")]
    said = any(str(metadata.get(kind, {}).get("alt", "")).strip() for kind in kinds)
    said |= bool(re.search(r"<title[^>]*>\s*[^<\s]", "".join(data.get("image/svg+xml", ""))))
    images = re.findall(r"<img\b[^>]*>", "".join(data.get("text/html", "")))
    spoken = [re.search(r"""\balt=("\s*[^"\s]|'\s*[^'\s])""", image) is not None for image in images]
    return not all(spoken) or bool(kinds) and not (said or spoken)


def listed(cells: list[int]) -> str:
    return ", ".join(f"In [{n}]" for n in cells)


def exercises(notebook) -> list[str]:
    """What is wrong in a student's lab that ran to its end: exercises not written, wrong ones, what else broke."""
    missing: list[str] = []
    wrong, others = [], []
    for i, n in numbers(notebook.cells).items():
        cell = notebook.cells[i]
        error = next((out for out in cell.outputs if out.output_type == "error"), None)
        if error is None or "raises-exception" in cell.metadata.get("tags", []):
            continue
        if not cell.metadata.get("nbgrader", {}).get("grade"):
            others.append((n, says(error)))
        elif unwritten := re.findall(r"(\S+) is not written yet", error.evalue):
            missing += [name for name in unwritten if name not in missing]
        else:
            wrong.append(f"In [{n}], {cell.metadata.nbgrader.grade_id}: {says(error)}")
    problems = [f"not written yet: {', '.join(missing)}"] if missing else []
    problems += wrong
    if others and problems:
        problems.append(f"what builds on them failed, too: {listed([n for n, _ in others])}")
    return problems or [f"In [{n}] failed with {message}" for n, message in others]


def says(error) -> str:
    """An error in one line: its first and its last."""
    lines = f"{error.ename}: {error.evalue}".strip().splitlines()
    return lines[0] if len(lines) == 1 else f"{lines[0]} … {lines[-1].strip()}"


def first_line(source: str) -> str:
    return next((line.strip() for line in source.splitlines() if line.strip() and not line.startswith("#")), "")


def execute(job: dict, report) -> list[str]:
    """Run the notebook that ``job`` names; returns its problems. ``report`` takes one dictionary at a time.

    With ``go_on`` an error stops nothing: each exercise of a student's lab is looked at.
    """
    import papermill
    from nbclient.exceptions import DeadKernelError
    from papermill.exceptions import PapermillExecutionError

    at, source = 0, ""

    def on_cell_start(cell, cell_index):
        nonlocal at, source
        if numbers([cell]):
            at, source = at + 1, first_line(cell.source)
            report({"cell": at})

    try:
        notebook = papermill.execute_notebook(
            job["notebook"],
            job["output"],
            job["parameters"],
            cwd=job["cwd"],
            progress_bar=False,
            on_cell_start=on_cell_start,
            kernel_manager_class=WatchedKernel,
            allow_errors=job["go_on"],
            # Its warnings are about itself (no encryption on this machine's own ports).
            extra_arguments=["--IPKernelApp.log_level=CRITICAL", f"--IPKernelApp.exec_lines={LEAVE}"],
        )
    except PapermillExecutionError as error:
        if job["go_on"]:
            return exercises(nbformat.read(job["output"], as_version=4))
        return [f"In [{at}] failed with {says(error)} (in: {first_line(error.source)})"]
    except DeadKernelError:
        return [f"{why_dead(WatchedKernel.exit_code)} (at In [{at}]: {source})"]
    finally:
        if Path(job["output"]).exists():
            executed = nbformat.read(job["output"], as_version=4)
            renumber(executed)
            nbformat.write(executed, job["output"])
    return unfinished(notebook) + wordless(notebook)


def main() -> int:
    channel = os.fdopen(os.dup(1), "w", encoding="utf8")  # the kernel inherits 1, but not this copy of it
    os.dup2(2, 1)

    def report(message: dict) -> None:
        channel.write(json.dumps(message) + "\n")
        channel.flush()

    try:
        problems = execute(json.loads(sys.argv[1]), report)
    except Exception as error:  # an unreadable notebook, a kernel that cannot start: one line, not a traceback
        problems = [f"could not be run: {type(error).__name__}: {str(error).strip()}".splitlines()[0]]
    report({"problems": problems, "ram": largest_child()})
    return 0


def largest_child() -> int:
    """The high-water mark of any one child that has ended, in bytes; 0 where the system keeps none (Windows)."""
    try:
        import resource
    except ImportError:
        return 0
    largest = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return largest if sys.platform == "darwin" else largest * 1024


if __name__ == "__main__":
    sys.exit(main())
