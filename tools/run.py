"""Run the course's notebooks and say what each one cost: ``python -m tools.run`` (``make run``).

Every lesson and lab runs through papermill, one process a notebook (tools/supervise.py), so one failing notebook
stops no other. On CPUs two run at a time; those that time something (``alone`` in their metadata) run at the end, with
nothing beside them. After each one ``results.json`` is replaced whole: an interrupted run keeps what was finished, and
``--resume`` runs only what has not passed yet, or has changed since. At the end comes the report.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import sys
import time
from ast import literal_eval
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from datetime import datetime
from pathlib import Path

import nbformat
from tqdm import tqdm

from minigpt.memory.readings import NOT_ON_CPU, write_atomically
from minigpt.memory.units import gb
from tools import ROOT, claims, environment, glossary, report
from tools.notebook_html import to_html
from tools.supervise import STOPPED, Notebook, Result, run_one, stop_all

AT_ONCE = 2  # notebooks; most of them keep one CPU busy, and take a GB of memory or less
VERSIONS = {"solutions": "instructor", "labs": "student"}  # whose version of a lab lies in which folder
ALONE = {glossary.PAGE: "glossary", claims.PAGE: "claims"}  # pages that are neither lesson nor lab


def find(root: Path, source: str, only: list[str]) -> list[Notebook]:
    """The notebooks to run: map, lessons, labs. Raises ValueError where there are none, or ``only`` names another."""
    labs = sorted((root / source).glob("*/*.ipynb"))
    paths = [*root.glob("index.ipynb"), *sorted((root / "lessons").glob("*.ipynb")), *labs]
    if not paths:
        raise ValueError(f"no notebooks in lessons/ or {source}/ of {root}; make them with: make notebooks")
    chosen = []
    for name in only:
        found = [path for path in paths if path.stem == name or path.stem.split("-")[0] == name]
        if not found:
            raise ValueError(f"--only is {name!r}; there is {', '.join(path.stem for path in paths)}")
        chosen += found
    notebooks = []
    for path in paths:
        try:
            version = VERSIONS[source] if path in labs else ALONE.get(path.relative_to(root).as_posix(), "lesson")
            notebooks += [Notebook(path, version)] if not only or path in chosen else []
        except Exception as error:  # nbformat raises many kinds, all about the file
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise ValueError(f"{path} cannot be read: {reason}") from None
    return notebooks


def share_parameters(notebooks: list[Notebook], given: dict, say=print) -> dict[str, dict]:
    """Which notebook gets which of the ``given`` parameters.

    Raises ValueError for one that none of them has, and for a value that JSON cannot hold.
    """
    for name, value in given.items():
        try:
            json.dumps(value)
        except (TypeError, ValueError):
            raise ValueError(f"parameter {name} is {value!r}; allowed: what JSON can hold") from None
        takers = [notebook.name for notebook in notebooks if name in notebook.parameters]
        if not takers:
            known = sorted(set().union(*(notebook.parameters for notebook in notebooks))) or ["none"]
            raise ValueError(f"parameter {name} is in none of the notebooks; they have: {', '.join(known)}")
        if len(takers) < len(notebooks):
            say(f"Parameter {name} goes to {', '.join(takers)}; the others have no parameter of that name.")
    return {nb.name: {k: v for k, v in given.items() if k in nb.parameters} for nb in notebooks}


def fingerprint(notebook: Notebook, parameters: dict, root: Path, device: str) -> str:
    """A hash of all that a result depends on: the notebook, the package, the parameters, the device."""
    digest = hashlib.sha256(json.dumps([parameters, device], sort_keys=True).encode())
    package = [p for p in sorted((root / "minigpt").rglob("*")) if p.is_file() and p.suffix != ".pyc"]
    for path in [notebook.path, *package]:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def value(text: str):
    """A parameter's value from the command line: a Python literal, true/false, or the text itself."""
    try:
        return literal_eval({"true": "True", "false": "False", "none": "None"}.get(text.lower(), text))
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return text


def load_results(output: Path) -> list[dict]:
    """What earlier runs left in ``output``; nothing, and a word about it, where the record cannot be read."""
    try:
        return report.read_results(output)["notebooks"] if (output / "results.json").exists() else []
    except ValueError as problem:
        print(f"run: {problem}. It is written anew.", file=sys.stderr)
        return []


def save_results(output: Path, facts: dict, results: dict[str, dict], order: list[str]) -> None:
    notebooks = [results[name] for name in order if name in results]
    content = {"environment": facts, "finished": datetime.now().isoformat(" ", "minutes"), "notebooks": notebooks}
    write_atomically(output / "results.json", json.dumps(content, indent=1) + "\n")


def forget(output: Path, name: str) -> None:
    """Drop what an earlier run of this notebook said a CPU could not do."""
    left = [line for line in report.could_not(output) if line["notebook"] != name]
    write_atomically(output / "readings" / NOT_ON_CPU, "".join(json.dumps(line) + "\n" for line in left))


def line(result: Result) -> str:
    """One notebook's line in the terminal."""
    minutes = f"{result.seconds / 60:.2f} of {result.minutes_budget or 0:g} min"
    memory = f"RAM {gb(result.ram)} of {gb(result.ram_budget or 0)}"
    if result.vram is not None:
        memory += f", VRAM {gb(result.vram)} of {gb(result.vram_budget or 0)}"
    first = f"{result.status}  {result.name:28} {minutes:18} {memory}"
    return "\n".join([first, *(f"    {problem}" for problem in result.problems)])


def say(bar, text: str) -> None:
    """A line in the terminal above the bar; at once, also where the output is piped."""
    bar.write(text, file=sys.stdout)
    sys.stdout.flush()


def report_folder(output: Path) -> Path:
    """build/report beside build/run, build/report-labs beside build/run-labs."""
    return output.parent / output.name.replace("run", "report", 1)


def write_page(notebook: Notebook, output: Path, names: list[str]) -> str | None:
    """Make the executed notebook's page, which leads to those in ``names``; says why there is none, or None."""
    executed = output / f"{notebook.name}.ipynb"
    try:
        report_page = Path(os.path.relpath(report_folder(output) / "index.html", output)).as_posix()
        to_html(
            executed, output / f"{notebook.name}.html", version=notebook.version, source=notebook.path,
            names=report.in_turn(names), report=report_page,
        )  # fmt: skip
    except (ValueError, OSError, nbformat.ValidationError) as error:  # stopped while it was written
        return f"its executed notebook cannot be shown: {str(error).splitlines()[0]}"
    return None


def finished(notebooks: list[Notebook], run_it: Callable[[Notebook], Result], at_once: int) -> Iterator:
    """(notebook, its Result) as each ends: ``at_once`` at a time, then each that runs alone. An error ends all."""
    STOPPED.clear()
    with ThreadPoolExecutor(at_once) as pool:
        try:
            running = {pool.submit(run_it, notebook): notebook for notebook in notebooks if not notebook.alone}
            for future in as_completed(running):
                yield running[future], future.result()
            for notebook in notebooks:
                if notebook.alone:
                    yield notebook, pool.submit(run_it, notebook).result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            stop_all()
            raise


def run_all(
    notebooks, shared, output: Path, root: Path, facts: dict, resume: bool, order: list[str], at_once: int = 1
) -> list[Result]:
    """Run them, and return a Result each, in their order. What is finished stays on Ctrl-C."""
    gpu = facts["gpu"] is not None
    earlier = {entry["name"]: entry for entry in load_results(output)}
    marks = {nb.name: fingerprint(nb, shared[nb.name], root, facts["gpu"] or "cpu") for nb in notebooks}
    if not resume:
        for notebook in notebooks:
            earlier.pop(notebook.name, None)
    done: dict[str, Result] = {}
    pages = [nb.name for nb in notebooks] + [path.stem for path in output.glob("*.html")]
    names = [name for name in order if name in pages]
    # A bar is for a terminal alone: a file gets the one line that each notebook ends with.
    with tqdm(total=sum(nb.code_cells for nb in notebooks), unit="cell", dynamic_ncols=True, disable=None) as bar:

        def run_it(notebook: Notebook) -> Result:
            bar.set_description(notebook.name)
            return run_one(notebook, shared[notebook.name], output, root, gpu, marks[notebook.name], bar.update)

        waiting = []
        for notebook in notebooks:
            before = earlier.get(notebook.name)
            if before and before["status"] == "passed" and before["fingerprint"] == marks[notebook.name]:
                done[notebook.name] = Result(**before)
                bar.update(notebook.code_cells)
                say(bar, f"kept    {notebook.name}: passed before, unchanged since")
            else:
                forget(output, notebook.name)
                waiting.append(notebook)
        for notebook, result in finished(waiting, run_it, at_once):
            if (output / f"{notebook.name}.ipynb").exists():
                if problem := write_page(notebook, output, names):
                    result.problems.append(problem)
                    result.status = "failed"
            say(bar, line(result))
            done[notebook.name] = result
            earlier[notebook.name] = asdict(result)
            save_results(output, facts, earlier, order)
    save_results(output, facts, earlier, order)
    return [done[notebook.name] for notebook in notebooks]


def arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.run", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--only", nargs="+", action="extend", default=[], metavar="NAME", help="notebooks, as lab02 or 01; commas, too"
    )
    parser.add_argument("--source", default="solutions", choices=("solutions", "labs"), help="which labs to run")
    parser.add_argument("--resume", action="store_true", help="keep what passed before and has not changed since")
    parser.add_argument("--at-once", type=int, metavar="N", help=f"notebooks at a time (1 on a GPU, else {AT_ONCE})")
    parser.add_argument("-p", nargs=2, action="append", default=[], metavar=("NAME", "VALUE"), help="a parameter")
    parser.add_argument("--output", type=Path, help="where results go (default build/run; with labs, build/run-labs)")
    parser.add_argument("--root", type=Path, default=ROOT, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.at_once is not None and args.at_once < 1:
        parser.error(f"--at-once is {args.at_once}; it must be at least 1")
    args.only = [name for text in args.only for name in re.split(r"[\s,]+", text) if name]
    return args


def main(argv: list[str] | None = None) -> int:
    args = arguments(argv)
    root = args.root.resolve()
    # Student versions stop at their first stub: they must not replace what the instructor's versions measured.
    args.output = args.output or Path("build/run" if args.source == "solutions" else "build/run-labs")
    output = root / args.output
    try:
        everything = find(root, args.source, [])
        chosen = find(root, args.source, args.only) if args.only else everything
        shared = share_parameters(chosen, {name: value(text) for name, text in args.p})
        output.mkdir(parents=True, exist_ok=True)
        facts = environment.describe()
        at_once = args.at_once or (1 if facts["gpu"] else min(AT_ONCE, os.cpu_count() or 1))
        where = facts["gpu"] or "On the CPU; what that makes shorter is said at the end"
        notebooks = "1 notebook" if len(chosen) == 1 else f"{len(chosen)} notebooks"
        print(f"{where}. {notebooks}, labs from {args.source}/, results in {args.output}/", flush=True)
        began = time.monotonic()
        results = run_all(chosen, shared, output, root, facts, args.resume, [nb.name for nb in everything], at_once)
        minutes = (time.monotonic() - began) / 60
        for entry in report.could_not(output):
            print(f"not on a CPU  {entry['notebook']}: {entry['what']}")
        page, broken = report.build(output, report_folder(output))
    except (ValueError, OSError) as error:
        print(f"run: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("run: stopped. What was finished is kept; go on with: make run ARGS=--resume", file=sys.stderr)
        return 130
    failed = [result.name for result in results if result.status != "passed"]
    print(f"{len(results) - len(failed)} of {len(results)} passed in {minutes:.1f} minutes. Report: {page}")
    for problem in broken:
        print(f"run: {problem}", file=sys.stderr)
    if failed:
        print(f"run: failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed or broken else 0


if __name__ == "__main__":
    sys.exit(main())
