"""A rank that fails ends all, nothing is left running, and one sentence says which it was and why."""

import os
import re
from pathlib import Path

import pytest

from minigpt.memory.measured.apart import Call
from minigpt.memory.measured.together import run_ranks

FAILS = {
    "raises": (RuntimeError, "rank 1 of 2 failed: ZeroDivisionError: division by zero\n"),
    "ends": (RuntimeError, "rank 1 of 2 ended with exit status 3; it printed nothing"),
    "is killed": (RuntimeError, "rank 1 of 2 was ended by SIGKILL; it printed nothing"),
    "hangs": (TimeoutError, "rank 1 of 2 came to no collective for 3 seconds, while rank 0 of 2 waited for it"),
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
