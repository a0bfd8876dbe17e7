"""A rank that fails ends all, nothing is left running, and one sentence says which it was and why."""

import os
import re
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from minigpt.memory.measured import told
from minigpt.memory.measured.apart import Call
from minigpt.memory.measured.meeting import Meeting
from minigpt.memory.measured.together import run_ranks

FAILS = {
    "raises": (RuntimeError, "rank 1 of 2 failed: ZeroDivisionError: division by zero\n"),
    "ends": (RuntimeError, "rank 1 of 2 ended with exit status 3; it printed nothing"),
    "is killed": (RuntimeError, "rank 1 of 2 was ended by SIGKILL; it printed nothing"),
    "hangs": (TimeoutError, "rank 1 of 2 kept rank 0 of 2 waiting: it came to no collective within the 3 seconds"),
}


def children() -> list[str]:
    """The processes that this one has started for a measurement and that still run."""
    words = b"minigpt.memory.measured.apart\0%d\0" % os.getpid()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if words in (process / "cmdline").read_bytes():
                found.append(process.name)
        except OSError:  # it has ended meanwhile
            pass
    return found


@pytest.mark.slow
@pytest.mark.parametrize("how", ["raises", "ends", "is killed", "hangs"])
def test_one_rank_that_fails_ends_all(how):
    kind, text = FAILS[how]
    with pytest.raises(kind, match=f"^{re.escape(text)}"):
        run_ranks(Call("tests.ranked:fail", {"ranks": 2, "how": how}), 2, patience=3, timeout=120)
    assert not children()


@pytest.mark.parametrize("options", [dict(ranks=0), dict(ranks=2, timeout=0), dict(ranks=2, patience=True)], ids=str)
def test_what_no_launch_can_have(options):
    name = list(options)[-1]
    with pytest.raises(ValueError, match=f"^{name} is {options[name]!r}"):
        run_ranks(Call("os:getpid"), **options)


def mean_of_ranks(scale: float) -> dict:
    """Told to the ranks below."""
    numbers = Doubled(torch.tensor([float(dist.get_rank()), 1.0])).twice()
    dist.all_reduce(numbers, op=dist.ReduceOp.AVG)
    return {"mean": numbers * scale, "ranks": dist.get_world_size()}


class Doubled:
    def __init__(self, numbers) -> None:
        self.numbers = numbers

    def twice(self):
        return 2 * self.numbers


def test_a_function_of_a_notebook_runs_as_a_rank(tmp_path, monkeypatch):
    def here(call: Call, ranks: int, *, timeout: float, patience: float) -> list:
        assert call.function == "minigpt.memory.measured.told:run_text"
        return [told.run_text(**call.arguments, rank=0, meeting=Meeting(str(tmp_path), timeout, patience))]

    monkeypatch.setattr(told, "run_ranks", here)  # a process apart runs the same text
    found = told.run_told(mean_of_ranks, 1, arguments={"scale": 3.0})
    assert found == [{"mean": [0.0, 6.0], "ranks": 1}]


@pytest.mark.parametrize("thing", [lambda: 1, len], ids=["lambda", "len"])
def test_what_has_no_text_is_refused(thing):
    with pytest.raises(ValueError, match="has no text; it must be a function or class of a cell"):
        told.run_told(thing, 2)
