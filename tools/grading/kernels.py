"""The notebook's own kernel, in a box: how it starts and is interrupted, and how a judge asks for values in it."""

from __future__ import annotations

import base64
import binascii
import sys
import time
from ast import literal_eval
from collections.abc import Callable
from subprocess import DEVNULL

from jupyter_client.manager import AsyncKernelManager
from nbclient.exceptions import DeadKernelError
from nbclient.util import run_sync

from minigpt.checks.answers import Channel, Elsewhere
from minigpt.checks.verdict import Wrong
from tools.grading.box import Box

SERVE = "__import__('minigpt.checks.answering').checks.answering.serve_text({!r})"


class BoxedManager(AsyncKernelManager):
    """A kernel that starts in ``box``. Where that has no network, sockets lie in a folder that both sides see."""

    box: Box

    def use(self, box: Box) -> None:
        self.box = box
        if box.held or box.fenced:
            self.transport, self.ip = "ipc", str(box.folder / "sockets" / "k")
            self.connection_file = str(box.folder / "sockets" / "c.json")

    def format_kernel_cmd(self, extra_arguments=None):

        return self.box.command([sys.executable, *super().format_kernel_cmd(extra_arguments)[1:]])

    async def _async_start_kernel(self, **options):
        options |= {"env": self.box.env, "cwd": str(self.box.cwd), "stdout": DEVNULL, "stderr": DEVNULL}
        await super()._async_start_kernel(**options)

    start_kernel = _async_start_kernel

    async def _async_interrupt_kernel(self):
        if self.box.held and self.kernel_spec:
            self.kernel_spec.interrupt_mode = "message"  # a signal would end bwrap
        await super()._async_interrupt_kernel()

    interrupt_kernel = _async_interrupt_kernel

    async def _async_cleanup_resources(self, restart=False):
        await super()._async_cleanup_resources(restart=restart)
        if not restart:
            self.box.close()

    cleanup_resources = _async_cleanup_resources


def reply(client, manager, sent: str, seconds: float) -> dict | None:
    """The content of the kernel's reply to ``sent``; None where there is none in time. Raises DeadKernelError."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            message = run_sync(client.get_shell_msg)(timeout=0.5)
        except Exception:  # queue.Empty, and what a dead kernel's sockets raise
            if not run_sync(manager.is_alive)():
                raise DeadKernelError("Kernel died") from None
            continue
        if message["parent_header"].get("msg_id") == sent:
            return message["content"]
    return None


class Kernel(Channel):
    """A judge's way to what the notebook's cells have made. ``ask(code)`` gives the reply to user_expressions."""

    def __init__(self, evaluate: Callable[[str], dict]) -> None:
        self.evaluate = evaluate

    def exchange(self, request: bytes, about: tuple[Elsewhere, ...]) -> bytes:
        names = " or ".join(dict.fromkeys(each.__name__ for each in about)) or "the answer"
        try:
            said = self.evaluate(SERVE.format(base64.b64encode(request).decode()))
            return base64.b64decode(literal_eval(said["data"]["text/plain"]))
        except DeadKernelError:
            raise Wrong("ends-program", f"{names} ends the process that it runs in") from None
        except TimeoutError:
            raise Wrong("does-not-end", f"{names} had not ended in time") from None
        except (KeyError, TypeError, ValueError, SyntaxError, MemoryError, RecursionError, binascii.Error):
            raise Wrong("broken-reply", f"{names}: what came back from it cannot be read") from None
