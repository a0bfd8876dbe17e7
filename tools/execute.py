"""One notebook, executed by papermill in a process of its own: ``python -m tools.execute JOB``, JOB as JSON.

The runner starts this file, so that a notebook can neither crash the runner nor leave memory behind. It
reports on standard output, a JSON object a line: ``{"cell": n}`` as each code cell starts, and at the end
``{"problems": [...], "ram": bytes}``. What the kernel itself prints to its console goes to standard error.

A problem is one sentence. papermill alone would pass a notebook that raised SystemExit, or that has cells
nobody executed; here both are problems. ``ram`` is the operating system's own high-water mark of the kernel.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys

from jupyter_client.manager import AsyncKernelManager


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
    if number == signal.SIGKILL:
        why += ": most likely out of memory"
    return why


def unfinished(notebook) -> list[str]:
    """What papermill lets through: SystemExit, and code cells that were never executed."""
    problems = []
    code = [(i, cell) for i, cell in enumerate(notebook.cells, 1) if cell.cell_type == "code" and cell.source.strip()]
    for i, cell in code:
        if any(out.output_type == "error" and out.ename == "SystemExit" for out in cell.outputs):
            problems.append(f"cell {i} raised SystemExit, so the cells after it never ran: {first_line(cell.source)}")
            return problems
    skipped = [i for i, cell in code if cell.execution_count is None]
    if skipped:
        problems.append(f"{len(skipped)} code cells were not executed: cell {', '.join(map(str, skipped))}")
    return problems


def first_line(source: str) -> str:
    return next((line.strip() for line in source.splitlines() if line.strip() and not line.startswith("#")), "")


def execute(job: dict, report) -> list[str]:
    """Run the notebook that ``job`` names; returns its problems. ``report`` takes one dictionary at a time."""
    # jsonschema would spend one or two seconds on compiling a grammar for web addresses, which no notebook needs
    sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]  # Python allows it: not to be found
    import papermill
    from nbclient.exceptions import DeadKernelError
    from papermill.exceptions import PapermillExecutionError

    position = {"cell": 0, "source": ""}

    def on_cell_start(cell, cell_index):
        if cell.cell_type == "code":
            position.update(cell=cell_index + 1, source=first_line(cell.source))
            report({"cell": cell_index + 1})

    try:
        notebook = papermill.execute_notebook(
            job["notebook"],
            job["output"],
            job["parameters"],
            cwd=job["cwd"],
            progress_bar=False,
            on_cell_start=on_cell_start,
            kernel_manager_class=WatchedKernel,
        )
    except PapermillExecutionError as error:
        last = f"{error.ename}: {error.evalue}".strip().splitlines()
        message = last[0] if len(last) == 1 else f"{last[0]} … {last[-1].strip()}"
        return [f"cell {position['cell']} failed with {message} (in: {first_line(error.source)})"]
    except DeadKernelError:
        return [f"{why_dead(WatchedKernel.exit_code)} (in cell {position['cell']}: {position['source']})"]
    return unfinished(notebook)


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
    largest = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss  # of any one child that has ended
    report({"problems": problems, "ram": largest if sys.platform == "darwin" else largest * 1024})
    return 0


if __name__ == "__main__":
    sys.exit(main())
