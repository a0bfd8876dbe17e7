"""A step on a GPU, recorded: what CUDA's allocator did in it goes into a file, and its two peaks are read.

    with recording("step.pickle") as seen:
        step()
    seen.card.reserved        # bytes; None without a GPU

``python -m minigpt.memory.snapshot step.pickle`` reads the file. Recording asks the allocator for nothing and changes
no request; it costs some microseconds for each. It is off again after the block, however that ends; after an error no
file is left. A meter does change what some operations ask for, so a step is metered or recorded, not both at once.

``reserved`` is what the allocator holds at most in the block, whatever it was taken for before.
Left out: other threads' device, and GPUs that are not CUDA's.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from minigpt.memory.buckets import Reserved

ENTRIES = 500_000  # events, some hundred bytes each: a step has some ten thousand


@dataclass
class Seen:
    """``card``: the allocator's counters, after the block; None without a GPU."""

    card: Reserved | None = None


@contextlib.contextmanager
def recording(path: str | os.PathLike | None) -> Iterator[Seen]:
    """Record the block's requests into ``path`` (None: read the counters alone). Without a GPU nothing is done.

    Raises ValueError where the file cannot be written.
    """
    seen = Seen()
    if not torch.cuda.is_available():
        yield seen
        return
    torch.cuda.synchronize()
    before = torch.cuda.memory_reserved()
    torch.cuda.reset_peak_memory_stats()
    if path is not None:
        torch.cuda.memory._record_memory_history(
            "all", context="alloc", stacks="python", max_entries=ENTRIES, clear_history=True
        )
    try:
        yield seen
        torch.cuda.synchronize()
        allocated, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
        seen.card = Reserved(allocated, "", reserved, "", before)
        if path is not None:
            _dump(Path(path))
    finally:
        if path is not None:
            torch.cuda.memory._record_memory_history(None)


def _dump(path: Path) -> None:
    """The whole file, or none."""
    unfinished = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.cuda.memory._dump_snapshot(str(unfinished))
        os.replace(unfinished, path)
    except OSError as error:
        with contextlib.suppress(OSError):  # it may never have been there
            unfinished.unlink()
        raise ValueError(f"path is {str(path)!r}, which cannot be written: {error.strerror}") from None
