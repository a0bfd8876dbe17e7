"""Measuring in a process of its own, where nothing of this one counts.

A process that has done other work measures that work too: a caught error's traceback keeps the tensors of every frame
that it went through, a notebook's ``Out[]`` keeps results, a GPU keeps workspaces, and one library can change another
for as long as the process lives (Unsloth does, on import). A fresh process has none of that.

    measure_apart(config, plan)                                    one step, as ``measure`` does it
    run_apart({"a": measuring(config, plan), "b": Call("minigpt.real:fine_tune", {...})}, at_once=2)

Call and answer are JSON files in a folder of the child's own, so that no banner that a library prints can get into
them. What the child prints is kept for error messages. A child downloads nothing (``HF_HUB_OFFLINE``), takes as many
threads as torch has here, and leads a process group: whatever it starts ends with it, and it ends when its parent has
died, however that happened. It costs what its imports cost: some seconds.

Left out: other machines, and children that live on for a second call. Windows has no groups of processes: what a child
started there may outlive it.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path

import numpy
import torch

import minigpt
from minigpt.memory.buckets import Ledger, Reserved, StepMemory
from minigpt.memory.measured.meeting import Meeting
from minigpt.memory.plan import TrainingPlan
from minigpt.memory.readings import write_atomically
from minigpt.model import GPTConfig
from minigpt.values import check_counts, check_flags, is_number

# What travels beside JSON.
KINDS = {kind.__name__: kind for kind in (GPTConfig, Ledger, Meeting, Reserved, StepMemory, TrainingPlan)}
KIND = "minigpt kind"
PREFIX = "apart-"  # of the child's folder; in it:
CALL, OUTPUT, ANSWER = "call.json", "output.txt", "answer.json"
LAST_LINES, LINE, LAST_BYTES = 12, 300, 16_000  # of a failed child's output in the error: lines, their length, all
WATCH_SECONDS = 0.5  # between two looks of a child at whether its parent lives


@dataclass(frozen=True)
class Call:
    """A function, "package.module:name", and its keyword arguments: JSON, sets, numpy's numbers, dtypes, KINDS."""

    function: str
    arguments: dict = field(default_factory=dict)


def measure_apart(model, plan: TrainingPlan, device: str = "cpu", *, timeout: float = 300) -> StepMemory:
    """``measure(model, plan, device)`` in a process of its own.

    ``model`` is a GPTConfig, a known name or the contents of a config.json. Raises what ``run_apart`` raises.
    """
    return run_apart({"measure": measuring(model, plan, device)}, timeout=timeout)["measure"]


def measuring(model, plan: TrainingPlan, device: str = "cpu", record: str | os.PathLike | None = None) -> Call:
    """The call of ``measure``, for ``run_apart``; a relative ``record`` is from here."""
    given = {"model": model, "plan": plan, "device": device}
    if record is not None:
        given["record"] = str(Path(record).resolve())
    return Call("minigpt.memory.measured.step:measure", given)


def run_apart(calls: dict[str, Call], *, at_once: int = 1, timeout: float = 300, keep_errors: bool = False) -> dict:
    """Run every call in its own process, ``at_once`` at a time; {name: what the function returned}, in their order.

    Raises the child's ValueError, RuntimeError with the child's last lines for any other failure, and TimeoutError
    after ``timeout`` seconds in one child; with ``keep_errors`` such an error stands in the place of its result.
    However this ends, an interrupt or this process's own death included, no child is left, nor what it started.
    """
    check_counts(at_once=at_once)
    check_flags(keep_errors=keep_errors)
    if not is_number(timeout) or not timeout > 0:
        raise ValueError(f"timeout is {timeout!r}; it must be a number of seconds above 0")
    texts = {name: encode(name, call) for name, call in calls.items()}
    waiting, results = list(texts), {}
    running: dict[str, Child] = {}
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                name = waiting.pop(0)
                running[name] = Child(name, timeout)  # known before it starts, so that any interrupt finds it
                running[name].start(texts[name])
            time.sleep(0.02)
            for name in [name for name, child in running.items() if child.ended()]:
                try:
                    results[name] = running.pop(name).result()
                except (ValueError, RuntimeError, TimeoutError) as error:
                    if not keep_errors:
                        raise
                    results[name] = error
    finally:
        for child in running.values():
            child.close()
    return {name: results[name] for name in calls}


class Child:
    """One running process, and the folder that it works in."""

    def __init__(self, name: str, timeout: float, share: int = 1) -> None:
        self.name, self.timeout, self.late = name, timeout, False
        self.threads = max(1, torch.get_num_threads() // share)  # of as many children that compute side by side
        self.process: subprocess.Popen[bytes] | None = None
        self.folder = tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True)

    def start(self, text: str) -> None:
        root = str(Path(minigpt.__file__).resolve().parent.parent)  # Colab's notebooks carry the package
        path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
        env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": str(self.threads), "HF_HUB_OFFLINE": "1"}
        self.deadline = time.monotonic() + self.timeout
        Path(self.folder.name, CALL).write_text(text, encoding="utf8")
        with open(Path(self.folder.name, OUTPUT), "wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "minigpt.memory.measured.apart", str(os.getpid())],
                cwd=self.folder.name, env=env,
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def ended(self) -> bool:
        self.late = time.monotonic() > self.deadline
        return self.late or (self.process is not None and self.process.poll() is not None)

    def result(self):
        """What the function returned; call it after the end, once."""
        try:
            answer = Path(self.folder.name, ANSWER)
            if answer.exists():
                content = json.loads(answer.read_text(encoding="utf8"), object_hook=_decode)
                if "result" in content:
                    return content["result"]
                if content["error"] == "ValueError":
                    raise ValueError(content["text"])
                raise RuntimeError(f"{self.name} failed: {content['error']}: {content['text']}{self._last_lines()}")
            if self.late:
                raise TimeoutError(f"{self.name} was stopped after {self.timeout:g} seconds{self._last_lines()}")
            assert self.process is not None  # it has been started, and has ended
            raise RuntimeError(f"{self.name} {_ending(self.process.returncode)}{self._last_lines()}")
        finally:
            self.close()

    def _last_lines(self) -> str:
        with open(Path(self.folder.name, OUTPUT), "rb") as output:
            size = output.seek(0, os.SEEK_END)
            output.seek(max(0, size - LAST_BYTES))
            text = output.read().decode("utf8", errors="replace")
        lines = [line.split("\r")[-1] for line in text.rstrip().split("\n")]  # of a progress bar: how it ended
        lines = [line if len(line) <= LINE else line[: LINE - 3] + "..." for line in lines[-LAST_LINES:]]
        return "\n".join(["\nits last lines:", *lines]) if text.strip() else "; it printed nothing"

    def close(self) -> None:
        if self.process is not None:
            if hasattr(os, "killpg"):
                with contextlib.suppress(ProcessLookupError, PermissionError):  # all have ended; the latter: macOS
                    os.killpg(self.process.pid, signal.SIGKILL)
            else:  # Windows has no groups of processes
                self.process.kill()
            self.process.wait()
        self.folder.cleanup()


def _ending(status: int) -> str:
    """How a process ended that left no answer; subprocess gives a signal as a negative status."""
    if status >= 0:
        return f"ended with exit status {status}"
    try:
        return f"was ended by {signal.Signals(-status).name}"
    except ValueError:  # a real-time signal has no name
        return f"was ended by signal {-status}"


def encode(name: str, call: Call) -> str:
    """JSON; raises ValueError, naming the call, for an argument that cannot travel."""
    try:
        return json.dumps({"function": call.function, "arguments": call.arguments}, default=_plain, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"the call of {call.function} for {name!r} cannot be sent: {error}") from None


def _plain(value):
    """One of KINDS as a dictionary; what lies inside it comes here by itself. A set arrives as a list."""
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if isinstance(value, numpy.generic):
        return value.item()
    if isinstance(value, torch.dtype):
        return {KIND: "dtype", "name": str(value).removeprefix("torch.")}
    if type(value) not in KINDS.values():
        raise TypeError(f"{type(value).__name__} is neither JSON nor one of {', '.join(KINDS)}")
    fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return {KIND: type(value).__name__, **fields}


def _decode(content: dict):
    if KIND not in content:
        return content
    if content[KIND] == "dtype":
        return getattr(torch, content["name"])
    if "events" in content:  # JSON has lists only
        content["events"] = tuple(map(tuple, content["events"]))
    return KINDS[content.pop(KIND)](**content)


def _watch(parent: int) -> None:
    """End this process, and what it has started, once its parent is another."""
    folder = Path.cwd()
    while os.getppid() == parent:
        time.sleep(WATCH_SECONDS)
    if folder.name.startswith(PREFIX):
        shutil.rmtree(folder, ignore_errors=True)  # the parent would have
    if hasattr(os, "killpg"):
        os.killpg(0, signal.SIGKILL)  # its own group
    os._exit(1)


def main() -> None:
    """In the child: do the call in the working folder's file, and leave there what it gave. argv: the parent's id."""
    threading.Thread(target=_watch, args=[int(sys.argv[1])], daemon=True).start()
    answer = Path(ANSWER).resolve()
    call = json.loads(Path(CALL).read_text(encoding="utf8"), object_hook=_decode)
    module, _, name = call["function"].partition(":")
    try:
        text = json.dumps({"result": getattr(import_module(module), name)(**call["arguments"])}, default=_plain)
    except Exception as error:
        traceback.print_exc()
        text = json.dumps({"error": type(error).__name__, "text": str(error)})
    write_atomically(answer, text)


def leave() -> None:
    """End as Python would, but leave a million objects to the system: to take them apart takes a second."""
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
    leave()
