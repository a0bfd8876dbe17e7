"""The process in which a student's code runs, and where a judge asks it: ``python -m minigpt.checks.answering``.

It reads requests from its stdin and writes replies to its stdout (``frames``), and takes both away from all code that
it runs. ``prepare`` runs cells in it, once. ``fork`` makes a child, in which everything else happens: its ``cells`` run
through IPython, so that magics work, and ``ask`` calls what they define (``serve``). A child that dies, or does not
answer in time, costs no more than itself: the judge (``process``) asks for a new one.

In a notebook's own kernel, for values that its cells made, the same is asked through jupyter's ``user_expressions``:

    __import__("minigpt.checks.answering").checks.answering.serve_text(TEXT)      base64, there and back

Nothing here knows a truth. A student's code can do with this process whatever it likes, and so say anything in its
reply; what it says is data (``wire``).

Left out: shutting it in, and a limit for the memory of what it starts; whoever starts this process does that.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import importlib
import os
import signal
import socket
import sys
import time
from collections.abc import Callable

import torch

from minigpt.checks import calling, probes, wire
from minigpt.checks.calling import call
from minigpt.checks.closing import by_hand
from minigpt.checks.comparing import plain
from minigpt.checks.frames import Ended, Pipe
from minigpt.checks.guards import NoKernels
from minigpt.checks.verdict import Wrong

MEMORY = 2**33  # bytes of addresses that a child may use, torch's own included
LIMIT = 2**31  # bytes of a request
PARENT_DEATH_SIGNAL, DUMPABLE = 1, 4  # of Linux' prctl
SPARE = 2**20  # bytes that a message has beside the value in it
_kept: list = []


def serve(request: bytes, names: dict) -> bytes:
    """The reply to a judge's ``Channel.ask``; ``names``: the notebook's namespace."""

    def find(kind: str, name):
        if kind == "probe":
            return probes.named(name)
        if kind == "kept":
            if name >= len(_kept):
                raise Wrong("lost", "what the answer had made is gone: the process that it ran in has ended")
            return _kept[name]
        if name not in names:
            raise Wrong("not-run", f"there is no {name} yet: run the cells above this one, in order")
        return names[name]

    def keep(value) -> int:
        _kept.append(value)
        return len(_kept) - 1

    does: dict[str, Callable] = {
        "call": lambda function, args, options: call(function, *args, **options),
        "by_hand": lambda function, args, options: by_hand(function, *args, **options),
        "probe": lambda probe, args, options: probe(*args, **options),
        "value": plain,
        "has": lambda name: name in names,
    }
    said: object
    try:
        do, *what = wire.receive(request, find)
        said = does[do](*what)
    except Wrong as wrong:
        said = wrong
    except BaseException as error:
        said = Wrong(f"raises-{type(error).__name__.lower()}", f"it fails with {type(error).__name__}: {error}"[:500])
    try:
        return wire.pack(said, keep)
    except BaseException as error:
        why = f"the answer gives something that cannot be handed over: {type(error).__name__}: {error}"
        return wire.pack(Wrong("broken-reply", why[:500]), keep)


def serve_text(request: str) -> str:
    """The same as text, on the namespace of the kernel that runs this."""
    from IPython import get_ipython

    return base64.b64encode(serve(base64.b64decode(request), get_ipython().user_ns)).decode()


def _shell():
    """IPython, without a history, and the threads that it would take."""
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    settings = Config()
    settings.HistoryManager.enabled = False
    return InteractiveShell.instance(config=settings)


def _run(shell, source: str) -> str:
    """What stopped the cell, if anything did."""
    result = shell.run_cell(source, silent=True)
    error = result.error_before_exec or result.error_in_exec
    return f"{type(error).__name__}: {error}"[:500] if error else ""


class Child:
    """A fork, in which cells run and answers are asked."""

    def __init__(self, shell, mine: list[int]) -> None:
        ours, theirs = socket.socketpair()
        parent = os.getpid()
        self.pid = os.fork()
        if not self.pid:
            try:
                ours.close()
                for descriptor in mine:
                    os.close(descriptor)
                os.setsid()
                sys.path.insert(0, "")  # as in a notebook: modules beside it
                _limit(parent)
                _answer(shell, Pipe(theirs.fileno(), theirs.fileno(), LIMIT))
            finally:
                os._exit(0)
        theirs.close()
        self.socket, self.status = ours, 0
        self.pipe = Pipe(ours.fileno(), ours.fileno(), wire.LIMIT + SPARE, self._alive)

    def _alive(self) -> bool:
        """A child's own children may hold its socket open, so the child is asked for."""
        if self.pid:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.pid, self.status = 0, status
        return bool(self.pid)

    def exchange(self, kind: bytes, number: int, data: bytes, seconds: float) -> tuple[bytes, bytes]:
        """(kind, data) of what it replies; else why it has ended: it died (e), is late (l), or replied unasked (u)."""
        try:
            self.pipe.send(kind, number, data, within=seconds)
            said, replied, _, data = self.pipe.receive(seconds)
            if (said, replied) == (kind, number):
                return kind, data
            self.end()
            return b"u", b""
        except Ended as error:
            soon = time.monotonic() + 0.5 * (not error.late)  # its end of the socket closes before it is gone
            while (alive := self._alive()) and time.monotonic() < soon:
                time.sleep(0.01)
            self.end()
            if error.late:
                return b"l", b""
            code = os.waitstatus_to_exitcode(self.status)
            how = str(error) if alive else f"signal {-code}" if code < 0 else f"exit code {code}"
            return b"e", how.encode()

    def end(self) -> None:
        if self.pid:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError, ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
                _, self.status = os.waitpid(self.pid, 0)
            self.pid = 0
        self.socket.close()


def _limit(parent: int) -> None:
    """No core, no more than ``MEMORY``, and no life after the parent's, where the system can."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        _, most = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY if most < 0 else min(MEMORY, most), most))
    _control(DUMPABLE, 1)
    _control(PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


def _control(option: int, value: int) -> None:
    """Linux' prctl; nothing elsewhere."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _answer(shell, pipe: Pipe) -> None:
    """The child's life. Ends with an error of ``pipe``: then the parent is gone."""
    while True:
        kind, number, _, data = pipe.receive()
        reply = _run(shell, data.decode()).encode() if kind == b"c" else serve(data, shell.user_ns)
        pipe.send(kind, number, reply)


def main() -> None:
    """The parent's life: requests are (b"p", a cell), (b"m", a module to import), (b"f", nothing), and its child's."""
    requests, replies = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1):
        os.dup2(nothing, descriptor)
    os.close(nothing)
    _control(DUMPABLE, 0)  # so a child without privileges cannot open what this process has open
    torch.set_num_threads(1)  # a pool of threads would not survive a fork
    if seconds := os.environ.get("ANSWER_SECONDS"):
        calling.SECONDS = int(seconds)
    with NoKernels():  # torch imports much at its first use: here, and not in every child
        torch.nn.Linear(1, 1)(torch.zeros(1))
    pipe, shell, child = Pipe(requests, replies, LIMIT), _shell(), None
    sys.stdout = sys.stderr = open(os.devnull, "w")
    while True:
        try:
            kind, number, limit, data = pipe.receive()
        except Ended:
            break
        reply = b""
        if kind == b"p":
            reply = _run(shell, data.decode()).encode()
        elif kind == b"m":
            with contextlib.suppress(ImportError):
                importlib.import_module(data.decode())
        elif kind == b"f":
            if child:
                child.end()
            child = Child(shell, [requests, replies])
        elif child is None:
            kind, reply = b"e", b"there is no child"
        else:
            kind, reply = child.exchange(kind, number, data, limit)
            if kind in b"elu":
                child = None
        pipe.send(kind, number, reply)
    if child:
        child.end()


if __name__ == "__main__":
    main()
