"""The judge's way to a student's code: a process that answers, and what is done where it dies.

    with Process() as there:               there: a Channel (``answers``)
        there.prepare(setup)               a cell that runs once, before any answer does
        there.run(answer)                  a cell with answers; what stopped it, or ""
        there.answer("count_minigpt")
        there.fresh()                      forgets all cells but the prepared ones

A cell or an answer that ends its process costs itself: a new child has all other cells run again, and who asks that
answer once more is told the same.

Left out: shutting the process in; ``command`` may do so.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence

from minigpt.checks import calling, wire
from minigpt.checks.answers import Channel, Elsewhere
from minigpt.checks.frames import Ended, Pipe
from minigpt.checks.verdict import Wrong

COMMAND = (sys.executable, "-m", "minigpt.checks.answering")
START = 120.0  # seconds in which a process must be there, its imports and its setup done


class Process(Channel):
    """A process that answers. ``modules`` are imported in it first; ``seconds``: of a whole request."""

    def __init__(
        self, command: Sequence[str] = COMMAND, *, cwd: str | os.PathLike | None = None,
        env: Mapping[str, str] | None = None, modules: Sequence[str] = (), seconds: float | None = None,
    ) -> None:  # fmt: skip
        self.command, self.cwd, self.modules = list(command), cwd, list(modules)
        self.env = {**(os.environ if env is None else env), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        self.seconds = 2 * calling.SECONDS + 30 if seconds is None else seconds
        self._prepared: list[str] = []
        self._cells: list[str] = []
        self._ended: dict[tuple, Wrong] = {}  # what was asked when a child ended, and the verdict of that
        self._process: subprocess.Popen | None = None
        self._pipe: Pipe | None = None
        self._child, self._number = False, 0

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def prepare(self, source: str) -> str:
        """Runs a cell for all children to come. What stopped it, or "". Raises Wrong where it ends the process."""
        self._prepared.append(source)
        if self._process is None:
            return self._start()[-1]
        self._child = False
        return self._say(b"p", source.encode(), START)[1].decode(errors="replace")

    def fresh(self) -> None:
        """The next cell runs in a new child, as if no other had run."""
        self._child, self._cells, self._ended = False, [], {}

    def run(self, source: str) -> str:
        """Runs a cell. What stopped it, or ""; what ends the process is forgotten in the next."""
        try:
            said = self._reply(b"c", source.encode()).decode(errors="replace")
        except Wrong as wrong:
            return str(wrong)
        self._cells.append(source)
        return said

    def exchange(self, request: bytes, about: tuple[Elsewhere, ...]) -> bytes:
        asked = tuple(each.by_name() for each in about)
        if asked in self._ended:
            raise Wrong(self._ended[asked].id, str(self._ended[asked]))
        try:
            return self._reply(b"a", request)
        except Wrong as wrong:
            names = " or ".join(dict.fromkeys(each.__name__ for each in about)) or "the answer"
            self._ended[asked] = Wrong(wrong.id, f"{names} {wrong}")
            raise self._ended[asked] from None

    def anew(self) -> None:
        self._child = False

    def close(self) -> None:
        process, self._process, self._pipe, self._child = self._process, None, None, False
        if process:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            for end in (process.stdin, process.stdout):
                if end:
                    end.close()
            process.wait()

    def _start(self) -> list[str]:
        """Starts it and prepares it; what stopped each cell that prepares."""
        if self.cwd is None:
            self._folder = tempfile.TemporaryDirectory()  # gone with this object
            self.cwd = self._folder.name
        self._process = subprocess.Popen(
            self.command, cwd=self.cwd, env=self.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, start_new_session=True, bufsize=0,
        )  # fmt: skip
        assert self._process.stdin and self._process.stdout
        reads, writes = self._process.stdout.fileno(), self._process.stdin.fileno()
        self._pipe = Pipe(
            reads, writes, wire.LIMIT + 2**20, lambda: bool(self._process and self._process.poll() is None)
        )
        for module in self.modules:
            self._say(b"m", module.encode(), START)
        return [self._say(b"p", cell.encode(), START)[1].decode(errors="replace") for cell in self._prepared]

    def _reply(self, kind: bytes, data: bytes) -> bytes:
        """The child's reply. Raises Wrong where the child has ended."""
        while True:
            anew = self._replay()
            said, reply = self._say(kind, data, self.seconds)
            if said == kind:
                return reply
            self._child = False
            if said != b"u" or anew and not self._cells:
                break
            if anew:  # what replies unasked was typed in by who ran last; if that was an answer, it is gone now
                self._cells.pop()
        if said == b"l":
            raise Wrong("does-not-end", f"had not ended after {self.seconds:.0f} seconds; does a loop never end?")
        how = reply.decode(errors="replace")[:100]
        more = ": did it ask for more memory than there is?" if how == "signal 9" else ""
        raise Wrong("ends-program", f"ends the process that it runs in ({how}){more}")

    def _replay(self) -> bool:
        """There is a child, in which all cells have run. Whether it is a new one."""
        if self._process is None:
            self._start()
        anew = not self._child
        while not self._child:
            self._say(b"f", b"", START)
            self._child = True
            for i, cell in enumerate(self._cells):
                said, _ = self._say(b"c", cell.encode(), self.seconds)
                if said != b"c":  # it has run before, so this time it depends on luck
                    del self._cells[max(i - (said == b"u"), 0)]
                    self._child = False
                    break
        return anew

    def _say(self, kind: bytes, data: bytes, seconds: float) -> tuple[bytes, bytes]:
        """What the process replies. Raises Wrong where the process itself has ended, and lets it start anew."""
        assert self._pipe
        try:
            self._number += 1
            self._pipe.send(kind, self._number, data, seconds, within=seconds + 10)
            said, number, _, reply = self._pipe.receive(seconds + 10)
            if number != self._number:
                raise Ended("it replies unasked")
            return said, reply
        except Ended as error:
            self.close()
            raise Wrong("ends-program", f"ends the process that runs it ({error})") from None
