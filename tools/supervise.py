"""One notebook under watch: its process started, its time and memory held against its budget, its end explained.

The budget is in the notebook's metadata: ``{"minutes": {"cpu", "gpu"}, "memory_gb": {"ram", "vram"}}`` under
``ledger``. RAM is the resident memory of the kernel and its children, the larger of a sample every 0.2 s and the
kernel's own high-water mark. VRAM is what nvidia-smi reports in use, above what was in use at the start: on a
card that others use too, it is not the notebook's alone.
"""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nbformat
import psutil

from minigpt.memory.units import GB, gb
from tools import ROOT, environment
from tools.execute import why_dead

PATIENCE = 10  # a notebook is stopped after this many times the minutes that it declares
LARGEST = 100_000  # minutes or GB that a notebook may declare
GRACE = 60  # seconds that starting a kernel may add to them
RUNNING: set[int] = set()  # the processes that run notebooks
STOPPED = threading.Event()


@dataclass
class Notebook:
    """One notebook to run: where it is, what it declares, which parameters it takes."""

    path: Path
    version: str = "lesson"  # or "glossary", "claims"; of a lab "instructor" or "student": whose version it is
    name: str = field(init=False)

    def __post_init__(self) -> None:
        self.name = self.path.stem
        content = nbformat.read(self.path, as_version=4)
        self.ledger: dict = content.metadata.get("ledger", {})
        check_ledger(self.ledger)
        self.code_cells = sum(cell.cell_type == "code" for cell in content.cells)
        tagged = [cell.source for cell in content.cells if "parameters" in cell.metadata.get("tags", [])]
        self.parameters = assigned(tagged[0]) if tagged else set()
        self.alone = self.ledger.get("alone") is True

    def budget(self, kind: str, which: str) -> float | None:
        return self.ledger.get(kind, {}).get(which)


def check_ledger(ledger) -> None:
    """Raises ValueError, naming the entry, for metadata that no budget can be read from. A missing entry is none."""
    if not isinstance(ledger, dict):
        raise ValueError(f"ledger is {ledger!r}; it must be an object")
    for name in ("title", "kind"):
        if not isinstance(ledger.get(name, ""), str):
            raise ValueError(f"ledger: {name} is {ledger[name]!r}; it must be a text")
    for name in ("minutes", "memory_gb"):
        budget = ledger.get(name, {})
        numbers: list[Any] = list(budget.values()) if isinstance(budget, dict) else [None]
        if not all(type(number) in (int, float) and 0 <= number <= LARGEST for number in numbers):
            raise ValueError(f"ledger: {name} is {budget!r}; it must be an object of numbers from 0 to {LARGEST:,}")


@dataclass
class Result:
    """What became of one notebook. Bytes and seconds; a budget that was not declared is None."""

    name: str
    title: str
    kind: str
    status: str  # "passed" or "failed"
    problems: list[str]
    seconds: float
    minutes_budget: float | None
    ram: int
    ram_budget: int | None
    vram: int | None
    vram_budget: int | None
    parameters: dict
    fingerprint: str


def assigned(source: str) -> set[str]:
    """Names that a parameters cell assigns. papermill's own reading misses some annotated ones."""
    targets: list[Any] = []
    for node in ast.parse(source).body:
        targets += node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return {target.id for target in targets if isinstance(target, ast.Name)}


class Sampler(threading.Thread):
    """Watches a process and its children until stopped: their time on the CPU, their peak memory, and the cards'."""

    def __init__(self, pid: int, gpu: bool) -> None:
        super().__init__(daemon=True)
        self.process, self.stopped = psutil.Process(pid), threading.Event()
        self.ram, self.start_vram = 0, environment.vram_in_use() if gpu else None
        self.vram = 0 if gpu else None
        self.spent: dict[int, float] = {}  # seconds on the CPU, by process

    @property
    def cpu_seconds(self) -> float:
        return sum(self.spent.values())

    def run(self) -> None:
        ticks = 0
        while not self.stopped.wait(0.2):
            try:
                children = self.process.children(recursive=True)
                self.ram = max(self.ram, sum(_resident(child) for child in children))
                self.spent.update((process.pid, _cpu_seconds(process)) for process in (self.process, *children))
            except psutil.NoSuchProcess:
                return
            if self.vram is not None and ticks % 3 == 0:
                self.vram = max(self.vram, (environment.vram_in_use() or 0) - (self.start_vram or 0))
            ticks += 1


def _resident(process: psutil.Process) -> int:
    try:
        return process.memory_info().rss
    except psutil.Error:  # it has just ended
        return 0


def _cpu_seconds(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.Error:
        return 0.0
    return times.user + times.system


def kill_tree(pid: int) -> None:
    """End a process that we started, and its children."""
    try:
        family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for process in family:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            pass
    psutil.wait_procs(family, timeout=10)


def stop_all() -> None:
    """End what runs, and start nothing more: each ``run_one`` that is going on in a thread comes to its end."""
    STOPPED.set()
    for pid in tuple(RUNNING):
        kill_tree(pid)


def run_one(
    notebook: Notebook, parameters: dict, output: Path, root: Path, gpu: bool, mark: str, on_cell=lambda: None
) -> Result:
    """Run one notebook to its end and return what became of it. KeyboardInterrupt ends its processes first."""
    which = ("gpu", "vram") if gpu else ("cpu", "ram")
    minutes = notebook.budget("minutes", which[0])
    limit = (minutes or 30) * 60 * PATIENCE + GRACE
    readings, cwd = output / "readings", output / "work" / notebook.name
    for old in readings.glob(f"{notebook.name.split('-')[0]}-*.json"):
        old.unlink()
    for ending in (".ipynb", ".html"):
        (output / f"{notebook.name}{ending}").unlink(missing_ok=True)
    shutil.rmtree(cwd, ignore_errors=True)
    cwd.mkdir(parents=True)
    readings.mkdir(exist_ok=True)
    passed_on = dict(parameters)
    if "READINGS_DIR" in notebook.parameters:
        passed_on.setdefault("READINGS_DIR", str(readings))
    job = {
        "notebook": str(notebook.path), "output": str(output / f"{notebook.name}.ipynb"),
        "parameters": passed_on, "cwd": str(cwd), "go_on": notebook.version == "student",
    }  # fmt: skip
    path = os.pathsep.join(filter(None, [str(root), str(ROOT), os.environ.get("PYTHONPATH")]))
    env = dict(os.environ, PYTHONPATH=path, LEDGER_READINGS=str(readings), LEDGER_NOTEBOOK=notebook.name)
    problems, ram, start, late = [], 0, time.monotonic(), threading.Event()
    with open(output / f"{notebook.name}.log", "w", encoding="utf8") as log:
        worker = subprocess.Popen(
            [sys.executable, "-m", "tools.execute", json.dumps(job)],
            stdout=subprocess.PIPE, stderr=log, text=True, env=env, start_new_session=True,
        )  # fmt: skip
        RUNNING.add(worker.pid)
        if STOPPED.is_set():  # while this one started
            kill_tree(worker.pid)
        sampler = Sampler(worker.pid, gpu)

        def stop() -> None:
            late.set()
            kill_tree(worker.pid)

        timer = threading.Timer(limit, stop)
        sampler.start()
        timer.start()
        finished = False
        try:
            for line in worker.stdout or ():
                message = json.loads(line)
                if "cell" in message:
                    on_cell()
                else:
                    problems, ram, finished = message["problems"], message["ram"], True
            worker.wait()
        finally:  # also on Ctrl-C
            timer.cancel()
            sampler.stopped.set()
            kill_tree(worker.pid)
            RUNNING.discard(worker.pid)
    if not os.path.getsize(log.name):
        os.unlink(log.name)
    sampler.join()
    seconds = time.monotonic() - start
    if late.is_set():
        problems = [f"stopped after {limit / 60:.1f} minutes: {PATIENCE} times the time it declares, and a start"]
    elif not finished:
        problems = [why_dead(worker.returncode).replace("the kernel", "the process that runs the notebook")]
    ram = max(ram, sampler.ram)
    ram_budget, vram_budget = (_bytes(notebook.budget("memory_gb", name)) for name in ("ram", "vram"))
    # Time that other programs kept the notebook waiting for a CPU is not the notebook's.
    own = seconds if gpu else min(seconds, sampler.cpu_seconds)
    problems += over_budget(own, minutes, ram, ram_budget, sampler.vram, vram_budget)
    return Result(
        name=notebook.name, title=notebook.ledger.get("title", notebook.name), kind=notebook.ledger.get("kind", "?"),
        status="failed" if problems else "passed", problems=problems, seconds=round(seconds, 1),
        minutes_budget=minutes, ram=ram, ram_budget=ram_budget, vram=sampler.vram, vram_budget=vram_budget,
        parameters=parameters, fingerprint=mark,
    )  # fmt: skip


def _bytes(gigabytes: float | None) -> int | None:
    return None if gigabytes is None else int(gigabytes * GB)


def over_budget(seconds, minutes, ram, ram_budget, vram, vram_budget) -> list[str]:
    """What cost more than the notebook declares, or was declared nowhere."""
    problems = []
    if minutes is None or ram_budget is None or (vram is not None and vram_budget is None):
        problems.append("its metadata declares no budget of minutes and memory_gb for this machine")
    if minutes is not None and seconds > 60 * minutes:
        problems.append(f"over budget: took {seconds / 60:.2f} minutes, declared {minutes:g}")
    for name, used, allowed in (("RAM", ram, ram_budget), ("VRAM", vram, vram_budget)):
        if used is not None and allowed is not None and used > allowed:
            problems.append(f"over budget: used {gb(used)} of {name}, declared {gb(allowed)}")
    return problems
