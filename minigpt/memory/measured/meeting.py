"""Where the ranks of one training meet: a process group of gloo on this machine, made so that peaks can be repeated.

Backend "steady" is gloo with one thread, over the machine's own interface. Gloo's threads let go of a collective's
tensors some time after it is done; one thread does one thing after the other, so when it has done a second, small
collective, it has let go of the first. The meter asks for that one (``collectives``). Ranks find each other through a
file, so that no port is fixed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

STEADY = "steady"


@dataclass(frozen=True)
class Meeting:
    """A folder that all ranks see; seconds that one waits for another, to come and in a collective."""

    folder: str
    timeout: float
    patience: float

    @contextlib.contextmanager
    def joined(self, name: str, rank: int, ranks: int) -> Iterator[None]:
        """A process group of ``ranks``, for what is done inside; ``name`` is new each time."""
        if not hasattr(dist.Backend, STEADY.upper()):
            dist.Backend.register_backend(STEADY, _steady, devices=["cpu"])
        store = dist.FileStore(str(Path(self.folder, name)), ranks)
        store.set(f"here is {rank}", "")
        store.wait([f"here is {other}" for other in range(ranks)], timedelta(seconds=self.timeout))
        patience = timedelta(seconds=self.patience)
        dist.init_process_group(f"cpu:{STEADY}", store=store, rank=rank, world_size=ranks, timeout=patience)
        try:
            yield
        finally:
            dist.destroy_process_group()


def is_steady() -> bool:
    """Whether this process has joined such a group."""
    return STEADY in dist.get_backend_config()


def _steady(store: dist.Store, rank: int, ranks: int, timeout: timedelta):
    options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # torch's stub leaves it out
    options._threads, options._timeout = 1, timeout
    options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    return dist.ProcessGroupGloo(store, rank, ranks, options)
