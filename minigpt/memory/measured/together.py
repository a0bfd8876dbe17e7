"""Processes that stand and fall together: the ranks of one training, on this machine.

    run_ranks(Call("package.module:function", {...}), ranks=4)      what the function returned, rank by rank

Each rank is a process as in ``apart``: it calls the function with its ``rank`` and with ``meeting``, a Meeting where it
finds the others. If one raises, ends or is killed, the others are stopped: they would wait for it. So are all if one
comes to no collective while another waits for it longer than ``patience``. The error says which rank it was, and why.

It is no torchrun, because its ranks end with the notebook that started them, however that ends, and because an error of
the others, who lost a connection, is not taken for the cause. ``python -m minigpt.sharding`` is for torchrun.

Left out: several machines, a rank that is started again.
"""

from __future__ import annotations

import tempfile
import time

from minigpt.memory.measured.apart import Call, Child, encode
from minigpt.memory.measured.meeting import Meeting
from minigpt.values import check_counts, is_number

GRACE = 3.0  # seconds for the others to say what they saw, after one has failed
OF_THE_WIRE = ("gloo", "Dist", "Connection", "Broken pipe", "Timed out waiting", "Wait timeout", "process group")


def run_ranks(call: Call, ranks: int, *, timeout: float = 300, patience: float = 60) -> list:
    """What ``call``'s function returned in each of ``ranks`` processes, which it tells ``rank`` and ``meeting``.

    Raises what ``run_apart`` raises, for the rank that failed; TimeoutError also where one kept another waiting.
    """
    check_counts(ranks=ranks)
    for name, value in {"timeout": timeout, "patience": patience}.items():
        if not is_number(value) or not value > 0:
            raise ValueError(f"{name} is {value!r}; it must be a number of seconds above 0")
    with tempfile.TemporaryDirectory(prefix="ranks-", ignore_cleanup_errors=True) as folder:
        names = [f"rank {rank} of {ranks}" for rank in range(ranks)]
        running, ended = {}, {}
        try:
            for rank, name in enumerate(names):
                given = {**call.arguments, "rank": rank, "meeting": Meeting(folder, 0.9 * timeout, patience)}
                running[name] = Child(name, timeout, share=ranks)
                running[name].start(encode(name, Call(call.function, given)))
            failed_at = float("inf")
            while running and time.monotonic() < failed_at + GRACE:
                time.sleep(0.02)
                for name in [name for name, child in running.items() if child.ended()]:
                    try:
                        ended[name] = running.pop(name).result()
                    except (ValueError, RuntimeError, TimeoutError) as error:
                        ended[name] = error
                        failed_at = min(failed_at, time.monotonic())
        finally:
            for child in running.values():
                child.close()
    _raise_the_cause(ended, list(running), patience)
    return [ended[name] for name in names]


def _raise_the_cause(ended: dict, stopped: list[str], patience: float) -> None:
    """The first error that is not about a lost connection; or who was waited for."""
    errors = {name: result for name, result in ended.items() if isinstance(result, Exception)}
    for error in errors.values():
        if not _of_the_wire(error):
            raise error
    if errors and stopped:
        waiting = ", ".join(errors)
        text = f"it came to no collective within the {patience:g} seconds of patience"
        raise TimeoutError(f"{stopped[0]} kept {waiting} waiting: {text}")
    for error in errors.values():
        raise error


def _of_the_wire(error: Exception) -> bool:
    """Whether a rank only tells that another is gone."""
    head = str(error).split("\nits last lines:")[0]
    return isinstance(error, RuntimeError) and any(word in head for word in OF_THE_WIRE)
