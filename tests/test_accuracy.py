"""What ``make accuracy`` compares and says; what it finds is in tests/test_predict.py."""

from __future__ import annotations

from collections import Counter

import pytest

from minigpt.memory import TrainingPlan
from minigpt.memory.families.architecture import FAMILIES
from minigpt.memory.plan import ALLOWED
from tools import accuracy
from tools.accuracy import Row, holds, report
from tools.cases import Case, groups
from tools.models import MEASURED_ONLY

GROUPS = groups()
CASE = Case("minigpt", TrainingPlan())
EXACT = {name: (0, 0.0) for name in ("weights", "gradients", "optimizer", "activations", "peak")}


def test_no_case_is_tried_twice():
    assert max(Counter(case for some in GROUPS.values() for case in some).values()) == 1


def test_every_family_has_a_group():
    assert [name.removeprefix("families: ") for name in GROUPS if name.startswith("families")] == list(FAMILIES)
    assert min(map(len, GROUPS.values())) >= 10


@pytest.mark.parametrize("word", ALLOWED)
def test_every_value_of_every_word_is_tried(word):
    """But for two formats, and an offload, that nobody follows."""
    tried = {getattr(case.plan, word) for some in GROUPS.values() for case in some}
    assert tried == set(ALLOWED[word]) - {"gptq", "awq"} - ({"optimizer"} if word == "shard_offload" else set())


def test_what_is_measured_only_is_not_predicted():
    names = {config["model_type"] for config in MEASURED_ONLY}
    assert len(names) == 10 and not names & set(FAMILIES)


@pytest.mark.parametrize(
    ("off", "held"),
    [({}, True), ({"peak": (9, 0.0009)}, True), ({"peak": (-20, -0.002)}, False), ({"weights": (1, 1e-9)}, False)],
)
def test_the_verdict(off, held):
    assert holds([Row("a", CASE, "cpu", EXACT), Row("a", CASE, "cpu", EXACT | off)]) == held


def test_a_group_has_one_line_unless_something_is_off():
    off = EXACT | {"activations": (3, 0.0002), "peak": (-3, -0.0001)}
    rows = [Row("even", CASE, "cpu", EXACT), Row("even", CASE, "fake", EXACT), Row("odd", CASE, "cpu", off)]
    rows += [Row("odd", CASE, "cpu", EXACT), Row("odd", CASE, "cpu", refused="rank is 9; allowed: 8")]
    _, even, *odd, _, _, why = report(rows).splitlines()
    assert even.split() == ["even", "2", "1", "0", "2", "0.000%", "0.000%"]
    assert [line.split()[1:8] for line in odd] == [
        ["activations", "3", "0", "1", "1", "0.010%", "0.020%"],
        ["peak", "3", "0", "1", "1", "0.005%", "0.010%"],
    ]
    assert odd[1].endswith("minigpt 1x256 (-3 B, cpu)") and why.split(maxsplit=1) == ["1", "rank is 9; allowed: 8"]


@pytest.mark.parametrize(
    ("config", "message"),
    [(["--every", "0"], "--every is 0"), (["--group", "none"], "--group is 'none'; allowed: full")],
)
def test_wrong_use_is_named(config, message, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["accuracy", *config])
    assert accuracy.main() == 2
    assert message in capsys.readouterr().err


def test_what_breaks_is_a_row_and_fails_the_verdict(monkeypatch):
    def broken(case, device):
        raise RuntimeError("a view is being\nmodified")

    monkeypatch.setattr(accuracy, "compare", broken)
    row = accuracy.run_case(("a", CASE, "cpu"))
    assert not holds([row]) and row.failed == "RuntimeError: a view is being modified"
    assert report([row]).endswith("failed: minigpt 1x256 on cpu: RuntimeError: a view is being modified")


def test_a_refusal_is_a_row():
    row = accuracy.run_case(("a", Case("minigpt", TrainingPlan(loss="fused")), "cpu"))
    assert row.found == {} and row.refused.startswith("loss is 'fused'")
