"""Timing in turns: the order, the end, and a ratio that a busy machine does not change."""

from __future__ import annotations

import time

import pytest

from tools.pairs import Ratio, clocked, in_turns


def test_who_goes_first_alternates_and_the_warm_up_does_not_count():
    order = []
    seconds = iter(range(100))

    def way(name: str):
        def run() -> float:
            order.append(name)
            return float(next(seconds))

        return run

    taken = in_turns({"a": way("a"), "b": way("b")}, turns=3)
    assert "".join(order) == "ab" + "ab" + "ba" + "ab"
    assert taken == {"a": [2.0, 5.0, 6.0], "b": [3.0, 4.0, 7.0]}
    order.clear()
    in_turns({"a": way("a"), "b": way("b")}, turns=1, warm_up=False)
    assert order == ["a", "b"]


def test_turns_go_on_until_the_seconds_are_over():
    started = time.perf_counter()
    taken = in_turns({"a": lambda: 0.0, "b": lambda: 0.0}, turns=1, seconds=0.05)
    assert time.perf_counter() - started >= 0.05
    assert len(taken["a"]) == len(taken["b"]) > 1


def test_clocked_returns_the_seconds_of_what_it_runs():
    ran = []
    assert 0.02 <= clocked(lambda: ran.append(time.sleep(0.02)))() < 1
    assert len(ran) == 1


def test_a_busy_while_changes_no_ratio():
    """B takes twice as long as A, also while the machine is ten times slower. The medians, 20 and 1, would say 20."""
    taken = {"a": [1.0, 10.0, 1.0], "b": [2.0, 20.0, 20.0]}
    ratio = Ratio.of(taken, "b", "a")
    assert (ratio.median, ratio.smallest, ratio.largest) == (2.0, 2.0, 20.0)
    assert str(ratio) == "2.00x (2.00 to 20.00)"
    with pytest.raises(ValueError, match="longer"):
        Ratio.of({"a": [1.0], "b": [1.0, 2.0]}, "a", "b")
